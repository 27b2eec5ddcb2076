//! The tools of a chat.

use std::collections::HashSet;

use lily_chat::ToolSpec;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, Mode, brief, wrong_type};

/// Most tools of a request.
const MAX_TOOLS: usize = 1024;
/// Longest name of a tool, in bytes.
const MAX_NAME: usize = 256;

/// What the model may call, and how.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// As the client wrote them: the model is shown exactly this. `None` without the field.
    pub shown: Option<Vec<Value>>,
    /// What a reply may call. Empty if nothing may be called.
    pub callable: Vec<ToolSpec>,
    /// Which of those are strict.
    pub strict: Vec<bool>,
    /// Places of the callable tools among those of the request.
    pub places: Vec<usize>,
    /// Whether a call may not be made although tools are shown.
    pub forbidden: bool,
    /// Whether a reply consists of calls.
    pub required: bool,
    /// Whether a reply may hold several calls.
    pub parallel: bool,
}

/// What `tool_choice` says.
enum Choice {
    Auto,
    None,
    Required,
    /// One tool, and the field that names it.
    Named(String, &'static str),
}

impl Tools {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.refuse_for("functions", is_empty, "give `tools`, which took its place")?;
        let is_none = |value: &Value| value == "none";
        fields.refuse_for("function_call", is_none, "give `tool_choice`, which took its place")?;
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let tools = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) => tools,
            Some(other) => return Err(wrong_type("tools", "an array of tools", &other)),
        };
        check_number(&tools)?;
        let mut all = Self { parallel, ..Self::default() };
        let mut shown = Vec::with_capacity(tools.len());
        let mut names = HashSet::new();
        for (index, tool) in tools.into_iter().enumerate() {
            if fields.mode() == Mode::Lenient && is_of_other_kind(&tool) {
                fields.list([format!("tools[{index}]")]);
                continue;
            }
            let (spec, strict) = spec(&tool, &format!("tools[{index}]"))?;
            check_new(&mut names, &spec, index)?;
            all.callable.push(spec);
            all.strict.push(strict);
            all.places.push(index);
            shown.push(tool);
        }
        all.shown = Some(shown).filter(|shown| !shown.is_empty());
        all.chosen(choice(fields)?)
    }

    /// What is left to call. Tools stay in the prompt all the same, so that its beginning does not
    /// change from request to request.
    fn chosen(self, choice: Choice) -> Result<Self, ApiError> {
        match choice {
            Choice::Auto => Ok(self),
            Choice::None => {
                let forbidden = self.shown.is_some();
                Ok(Self { forbidden, callable: Vec::new(), strict: Vec::new(), ..self })
            }
            Choice::Required if self.callable.is_empty() => {
                let message = "`tool_choice` = \"required\" needs `tools`; give one at least";
                Err(ApiError::field("tool_choice", message))
            }
            Choice::Required => Ok(Self { required: true, ..self }),
            Choice::Named(name, field) => {
                match self.callable.iter().position(|tool| tool.name == name) {
                    Some(first) => Ok(Self {
                        required: true,
                        callable: vec![self.callable[first].clone()],
                        strict: vec![self.strict[first]],
                        places: vec![self.places[first]],
                        ..self
                    }),
                    None => {
                        let name = brief(&name);
                        let message = format!("`{field}` = `{name}` is the name of no tool");
                        Err(ApiError::field(field, message))
                    }
                }
            }
        }
    }
}

fn choice(fields: &mut Fields) -> Result<Choice, ApiError> {
    let names = "auto, none, required or {\"type\": \"function\", \"function\": {\"name\": …}}";
    match fields.take("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            other => {
                let message = format!("`tool_choice` is `{}`, but should be {names}", brief(other));
                Err(ApiError::field("tool_choice", message))
            }
        },
        Some(choice @ Value::Object(_)) => named(choice, fields.mode()),
        Some(other) => Err(wrong_type("tool_choice", names, &other)),
    }
}

/// A choice that names a tool; in the newer API the name is not nested.
fn named(choice: Value, mode: Mode) -> Result<Choice, ApiError> {
    let mut choice = Fields::nested(choice, "tool_choice", mode)?;
    match choice.text("type")?.as_deref() {
        Some("function") => {}
        Some(other) => {
            let message =
                format!("`tool_choice.type` is `{}`, but only function is supported", brief(other));
            return Err(ApiError::field("tool_choice.type", message));
        }
        None => {
            let message = "`tool_choice.type` is missing; give function";
            return Err(ApiError::field("tool_choice.type", message));
        }
    }
    let nested = choice.object("function", |function| function.text("name"))?.flatten();
    let flat = choice.text("name")?;
    choice.finish()?;
    match (nested, flat) {
        (Some(name), _) => Ok(Choice::Named(name, "tool_choice.function.name")),
        (None, Some(name)) => Ok(Choice::Named(name, "tool_choice.name")),
        (None, None) => {
            let message = "`tool_choice.function.name` is missing; give the name of a tool";
            Err(ApiError::field("tool_choice.function.name", message))
        }
    }
}

fn check_number(tools: &[Value]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        let found = tools.len();
        let message = format!("`tools` has {found} tools, but at most {MAX_TOOLS} are supported");
        return Err(ApiError::field("tools", message));
    }
    Ok(())
}

/// Refuses a second tool of the same name.
fn check_new(names: &mut HashSet<String>, spec: &ToolSpec, index: usize) -> Result<(), ApiError> {
    if names.insert(spec.name.clone()) {
        return Ok(());
    }
    let name = format!("tools[{index}].function.name");
    let message = format!("`{name}` = `{}` is the name of an earlier tool too", brief(&spec.name));
    Err(ApiError::field(name, message))
}

/// Whether a tool is none that a request defines, such as a search of the server's.
fn is_of_other_kind(tool: &Value) -> bool {
    tool.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "function")
}

/// A tool, and whether it is strict.
fn spec(tool: &Value, path: &str) -> Result<(ToolSpec, bool), ApiError> {
    let function = function(tool, path)?;
    let path = &format!("{path}.function");
    let field = |name: &str| function.get(name).filter(|value| !value.is_null());
    let wrong =
        |name: &str, expected, found| Err(wrong_type(&format!("{path}.{name}"), expected, found));
    let name = name(field("name"), &format!("{path}.name"))?;
    if let Some(other) = field("description").filter(|value| !value.is_string()) {
        return wrong("description", "a string", other);
    }
    let strict = match field("strict") {
        None => false,
        Some(Value::Bool(strict)) => *strict,
        Some(other) => return wrong("strict", "true or false", other),
    };
    let parameters = match field("parameters") {
        None => Value::Null,
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(other) => return wrong("parameters", "an object", other),
    };
    Ok((ToolSpec::new(name, parameters), strict))
}

/// The function that the tool at `path` is.
fn function<'a>(tool: &'a Value, path: &str) -> Result<&'a Map<String, Value>, ApiError> {
    let Some(tool) = tool.as_object() else { return Err(wrong_type(path, "an object", tool)) };
    match tool.get("type") {
        None => {}
        Some(Value::String(kind)) if kind == "function" => {}
        Some(other) => {
            let name = format!("{path}.type");
            let found = brief(&other.to_string());
            let message = format!("`{name}` is {found}, but only function is supported");
            return Err(ApiError::field(name, message));
        }
    }
    let path = format!("{path}.function");
    match tool.get("function") {
        Some(Value::Object(function)) => Ok(function),
        Some(other) => Err(wrong_type(&path, "an object", other)),
        None => {
            let message = format!("`{path}` is missing; give the function with its name");
            Err(ApiError::field(path, message))
        }
    }
}

/// The name of a tool, which a call must be able to give.
fn name(found: Option<&Value>, path: &str) -> Result<String, ApiError> {
    let message = match found {
        Some(Value::String(name)) if is_name(name) => return Ok(name.clone()),
        Some(Value::String(name)) => format!(
            "`{path}` is `{}`, but should be 1 to {MAX_NAME} bytes without white space, control \
             characters, < and >",
            brief(name)
        ),
        Some(other) => return Err(wrong_type(path, "a string", other)),
        None => format!("`{path}` is missing; give one that no other tool has"),
    };
    Err(ApiError::field(path, message))
}

/// A place in the schema of a callable tool, by its name in a request that has the tools at `places`.
pub(crate) fn parameter(places: &[usize], tool: usize, place: &str) -> String {
    let index = places.get(tool).copied().unwrap_or(tool);
    format!("tools[{index}].function.parameters{}", brief(place))
}

/// Whether a call can name it: `<function=NAME>`.
fn is_name(name: &str) -> bool {
    let breaks = |c: char| c.is_whitespace() || c.is_control() || c == '<' || c == '>';
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(breaks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Mode;
    use serde_json::json;

    fn tools(body: Value) -> Result<(Tools, Vec<String>), ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes(), Mode::Strict)?;
        let tools = Tools::take(&mut fields)?;
        Ok((tools, fields.finish()?))
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name } })
    }

    #[test]
    fn tools_are_shown_as_written_and_callable_unless_forbidden() {
        let first = json!({ "type": "function", "x": 1, "function": {
            "name": "a", "description": "A.", "strict": true, "parameters": { "type": "object" } } });
        let body = json!({ "tools": [first, tool("b")] });
        let (auto, ignored) = tools(body.clone()).unwrap();
        assert_eq!(auto.shown.unwrap()[0], first);
        let specs =
            [ToolSpec::new("a", json!({ "type": "object" })), ToolSpec::new("b", Value::Null)];
        assert_eq!(auto.callable, specs);
        assert!(auto.parallel && !auto.forbidden && !auto.required);
        assert_eq!((auto.strict, ignored), (vec![true, false], Vec::new()));
        let mut none = body;
        none["tool_choice"] = json!("none");
        none["parallel_tool_calls"] = json!(false);
        let (none, _) = tools(none).unwrap();
        assert!(none.forbidden && none.callable.is_empty() && !none.parallel);
        assert_eq!(none.shown.unwrap().len(), 2);
        assert!(tools(json!({ "tools": [], "tool_choice": "none" })).unwrap().0.shown.is_none());
    }

    #[test]
    fn r62_a_choice_may_require_calls_and_name_a_tool_in_two_forms() {
        let with = |choice: Value| json!({ "tools": [tool("a"), tool("b"), tool("c")], "tool_choice": choice });
        let (any, _) = tools(with(json!("required"))).unwrap();
        assert!(any.required && any.callable.len() == 3);
        for choice in [
            json!({ "type": "function", "function": { "name": "b" } }),
            json!({ "type": "function", "name": "b" }),
        ] {
            let (one, _) = tools(with(choice)).unwrap();
            assert!(one.required && one.places == [1]);
            assert_eq!(one.callable, [ToolSpec::new("b", Value::Null)]);
            assert_eq!(one.shown.unwrap().len(), 3, "the prompt does not change");
        }
    }

    #[test]
    fn r71_tools_of_other_kinds_are_left_out_where_a_request_is_lenient() {
        let body = json!({ "tools": [{ "type": "web_search" }, tool("a"),
            { "type": "custom", "custom": { "name": "x" } }, tool("b")], "tool_choice": tool("b") });
        let mut fields = Fields::parse(body.to_string().as_bytes(), Mode::Lenient).unwrap();
        let kept = Tools::take(&mut fields).unwrap();
        assert_eq!(kept.callable, [ToolSpec::new("b", Value::Null)]);
        assert_eq!(kept.places, [3]);
        assert_eq!(kept.shown.unwrap(), [tool("a"), tool("b")]);
        assert_eq!(fields.finish().unwrap(), ["tools[0]", "tools[2]"]);
        let none = json!({ "tools": [{ "type": "web_search" }] }).to_string();
        let mut fields = Fields::parse(none.as_bytes(), Mode::Lenient).unwrap();
        assert!(Tools::take(&mut fields).unwrap().shown.is_none());
    }

    #[test]
    fn bad_tools_are_refused_by_name() {
        let function = |function: Value| json!({ "tools": [{ "function": function }] });
        for (body, param) in [
            (json!({ "tools": {} }), "tools"),
            (json!({ "tools": [1] }), "tools[0]"),
            (json!({ "tools": vec![tool("a"); 1025] }), "tools"),
            (json!({ "tools": [{ "type": "custom", "custom": {} }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
            (json!({ "tools": [{ "function": 1 }] }), "tools[0].function"),
            (function(json!({})), "tools[0].function.name"),
            (function(json!({ "name": "" })), "tools[0].function.name"),
            (function(json!({ "name": "a>b" })), "tools[0].function.name"),
            (function(json!({ "name": "a b" })), "tools[0].function.name"),
            (function(json!({ "name": "a".repeat(257) })), "tools[0].function.name"),
            (function(json!({ "name": "a", "parameters": [] })), "tools[0].function.parameters"),
            (function(json!({ "name": "a", "description": 1 })), "tools[0].function.description"),
            (function(json!({ "name": "a", "strict": 1 })), "tools[0].function.strict"),
            (json!({ "tools": [tool("a"), tool("a")] }), "tools[1].function.name"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "tools": [], "tool_choice": "required" }), "tool_choice"),
            (
                json!({ "tools": [tool("a")], "tool_choice": tool("b") }),
                "tool_choice.function.name",
            ),
            (json!({ "tool_choice": tool("a") }), "tool_choice.function.name"),
            (json!({ "tool_choice": { "type": "function", "name": "a" } }), "tool_choice.name"),
            (json!({ "tool_choice": { "type": "function" } }), "tool_choice.function.name"),
            (json!({ "tool_choice": { "type": "allowed_tools" } }), "tool_choice.type"),
            (json!({ "tool_choice": { "name": "a" } }), "tool_choice.type"),
            (json!({ "tool_choice": { "type": "function", "x": 1 } }), "tool_choice.x"),
            (json!({ "tool_choice": "any" }), "tool_choice"),
            (json!({ "tool_choice": 1 }), "tool_choice"),
            (json!({ "parallel_tool_calls": 1 }), "parallel_tool_calls"),
            (json!({ "functions": [{ "name": "a" }] }), "functions"),
            (json!({ "function_call": "auto" }), "function_call"),
        ] {
            let error = tools(body.clone()).expect_err(&body.to_string()).body();
            assert_eq!(error["error"]["param"], param, "{body}");
        }
    }
}
