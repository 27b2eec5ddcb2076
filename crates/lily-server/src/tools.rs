//! The tools of a chat.

use std::collections::HashSet;

use lily_chat::ToolSpec;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, brief, wrong_type};

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
    /// Whether a call may not be made although tools are shown.
    pub forbidden: bool,
    /// Whether a reply may hold several calls.
    pub parallel: bool,
}

impl Tools {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.refuse_for("functions", is_empty, "give `tools`, which took its place")?;
        let is_none = |value: &Value| value == "none";
        fields.refuse_for("function_call", is_none, "give `tool_choice`, which took its place")?;
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let shown = match fields.take("tools") {
            None => None,
            Some(Value::Array(tools)) if tools.is_empty() => None,
            Some(Value::Array(tools)) => Some(tools),
            Some(other) => return Err(wrong_type("tools", "an array of tools", &other)),
        };
        let specs = match &shown {
            None => Vec::new(),
            Some(tools) => specs(fields, tools)?,
        };
        let forbidden = choice(fields, shown.is_some())?;
        let callable = if forbidden { Vec::new() } else { specs };
        Ok(Self { shown, callable, forbidden, parallel })
    }
}

/// Whether calls are forbidden. Tools stay in the prompt all the same, so that its beginning does
/// not change from request to request.
fn choice(fields: &mut Fields, has_tools: bool) -> Result<bool, ApiError> {
    let Some(choice) = fields.take("tool_choice") else { return Ok(false) };
    let message = match &choice {
        Value::String(choice) if choice == "auto" => return Ok(false),
        Value::String(choice) if choice == "none" => return Ok(has_tools),
        Value::String(choice) if choice == "required" => {
            "`tool_choice` = \"required\" is not supported by this server; use auto or none".into()
        }
        Value::String(choice) => {
            format!("`tool_choice` is `{}`, but should be auto or none", brief(choice))
        }
        Value::Object(_) => "`tool_choice` with a named tool is not supported by this server; use \
                             auto or none"
            .into(),
        other => return Err(wrong_type("tool_choice", "a string or an object", other)),
    };
    Err(ApiError::field("tool_choice", message))
}

fn specs(fields: &mut Fields, tools: &[Value]) -> Result<Vec<ToolSpec>, ApiError> {
    if tools.len() > MAX_TOOLS {
        let found = tools.len();
        let message = format!("`tools` has {found} tools, but at most {MAX_TOOLS} are supported");
        return Err(ApiError::field("tools", message));
    }
    let mut names = HashSet::new();
    let mut specs = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let path = format!("tools[{index}]");
        let spec = spec(fields, tool, &path)?;
        if !names.insert(spec.name.clone()) {
            let name = format!("{path}.function.name");
            let message =
                format!("`{name}` = `{}` is the name of an earlier tool too", brief(&spec.name));
            return Err(ApiError::field(name, message));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn spec(fields: &mut Fields, tool: &Value, path: &str) -> Result<ToolSpec, ApiError> {
    if !tool.is_object() {
        return Err(wrong_type(path, "an object", tool));
    }
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
    let function = match tool.get("function") {
        Some(Value::Object(function)) => function,
        Some(other) => return Err(wrong_type(&path, "an object", other)),
        None => return Err(ApiError::field(path.as_str(), format!("`{path}` is missing"))),
    };
    let field = |name: &str| function.get(name).filter(|value| !value.is_null());
    let name = match field("name") {
        Some(Value::String(name)) if is_name(name) => name.clone(),
        Some(Value::String(name)) => {
            let message = format!(
                "`{path}.name` is `{}`, but should be 1 to {MAX_NAME} bytes without white space, \
                 control characters, < and >",
                brief(name)
            );
            return Err(ApiError::field(format!("{path}.name"), message));
        }
        Some(other) => return Err(wrong_type(&format!("{path}.name"), "a string", other)),
        None => {
            let name = format!("{path}.name");
            return Err(ApiError::field(name.as_str(), format!("`{name}` is missing")));
        }
    };
    if let Some(other) = field("description").filter(|value| !value.is_string()) {
        return Err(wrong_type(&format!("{path}.description"), "a string", other));
    }
    match field("strict") {
        // Calls are typed by their schema, but nothing makes the model keep to it.
        Some(Value::Bool(true)) => fields.list([format!("{path}.strict")]),
        None | Some(Value::Bool(false)) => {}
        Some(other) => return Err(wrong_type(&format!("{path}.strict"), "true or false", other)),
    }
    let parameters = match field("parameters") {
        None => Value::Null,
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(other) => return Err(wrong_type(&format!("{path}.parameters"), "an object", other)),
    };
    Ok(ToolSpec::new(name, parameters))
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
        assert!(auto.parallel && !auto.forbidden);
        assert_eq!(ignored, ["tools[0].function.strict"]);
        let mut none = body;
        none["tool_choice"] = json!("none");
        none["parallel_tool_calls"] = json!(false);
        let (none, _) = tools(none).unwrap();
        assert!(none.forbidden && none.callable.is_empty() && !none.parallel);
        assert_eq!(none.shown.unwrap().len(), 2);
        assert!(tools(json!({ "tools": [], "tool_choice": "none" })).unwrap().0.shown.is_none());
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
            (json!({ "tools": [tool("a")], "tool_choice": "required" }), "tool_choice"),
            (json!({ "tools": [tool("a")], "tool_choice": tool("a") }), "tool_choice"),
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
