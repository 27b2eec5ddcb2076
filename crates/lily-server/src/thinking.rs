//! Whether the model thinks, and how long.

use lily_text::TemplateOptions;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, Mode, brief, wrong_type};

/// What a request says about thinking.
#[derive(Debug)]
pub(crate) struct ThinkingOptions {
    /// Variables of the template.
    pub template: TemplateOptions,
    /// Most tokens of a thought; `None` leaves it to the model.
    pub budget: Option<usize>,
    /// The field that says so.
    pub budget_field: Option<&'static str>,
}

/// What the fields of a request say, each by its name.
#[derive(Default)]
struct Said {
    /// Whether the model thinks.
    switches: Vec<(&'static str, bool)>,
    /// Most tokens of the thought.
    budgets: Vec<(&'static str, usize)>,
}

impl ThinkingOptions {
    /// Takes all fields that switch or bound thinking; they must agree. `variables` are those that
    /// the template reads.
    pub fn take(fields: &mut Fields, variables: &[String]) -> Result<Self, ApiError> {
        let mut extra = match fields.take("chat_template_kwargs") {
            None => Map::new(),
            Some(Value::Object(extra)) => extra,
            Some(other) => return Err(wrong_type("chat_template_kwargs", "an object", &other)),
        };
        let Said { mut switches, budgets } = Said::take(fields, &mut extra)?;
        let budget = agreed(&budgets)?;
        // Nothing to think with is not to think.
        if let Some((name, 0)) = budget {
            switches.push((name, false));
        }
        let budget = budget.filter(|&(_, tokens)| tokens > 0);
        let template = TemplateOptions {
            enable_thinking: agreed(&switches)?.map(|(_, on)| on),
            preserve_thinking: variable(&mut extra, "preserve_thinking")?,
            extra: known(extra, variables, fields)?,
            ..TemplateOptions::default()
        };
        Ok(Self {
            template,
            budget: budget.map(|(_, tokens)| tokens),
            budget_field: budget.map(|(field, _)| field),
        })
    }
}

impl Said {
    /// Takes the switches and budgets by all their names, those among the template's variables
    /// included.
    fn take(fields: &mut Fields, extra: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let mut said = Self::default();
        said.switch("enable_thinking", fields.flag("enable_thinking")?);
        said.switch("reasoning_effort", effort(fields, "reasoning_effort")?);
        let among_variables = variable(extra, "enable_thinking")?;
        said.switch("chat_template_kwargs.enable_thinking", among_variables);
        said.budget("thinking_budget", budget(fields, "thinking_budget")?);
        fields.object("thinking", |thinking| {
            said.switch("thinking.type", kind(thinking)?);
            said.budget("thinking.budget_tokens", budget(thinking, "budget_tokens")?);
            Ok(())
        })?;
        fields.object("reasoning", |reasoning| {
            said.switch("reasoning.effort", effort(reasoning, "effort")?);
            said.switch("reasoning.enabled", reasoning.flag("enabled")?);
            said.budget("reasoning.max_tokens", budget(reasoning, "max_tokens")?);
            reasoning.refuse("exclude", |value| *value == Value::Bool(false))?;
            reasoning.refuse("summary", |_| false)
        })?;
        Ok(said)
    }

    fn switch(&mut self, name: &'static str, on: Option<bool>) {
        self.switches.extend(on.map(|on| (name, on)));
    }

    fn budget(&mut self, name: &'static str, tokens: Option<usize>) {
        self.budgets.extend(tokens.map(|tokens| (name, tokens)));
    }
}

/// The variables that the template reads. Others are refused, or listed where a request is lenient.
fn known(
    mut extra: Map<String, Value>,
    variables: &[String],
    fields: &mut Fields,
) -> Result<Map<String, Value>, ApiError> {
    let is_known = |name: &String| variables.contains(name);
    let full = |name: &String| format!("chat_template_kwargs.{}", brief(name));
    if fields.mode() == Mode::Lenient {
        fields.list(extra.keys().filter(|&name| !is_known(name)).map(full));
        extra.retain(|name, _| is_known(name));
    }
    match extra.keys().find(|&name| !is_known(name)) {
        None => Ok(extra),
        Some(name) => {
            let full = full(name);
            let message = format!(
                "`{full}` is no variable that the model's chat template lets a request set; leave \
                 it out"
            );
            Err(ApiError::field(full, message))
        }
    }
}

/// What all fields say, with the name of the first.
fn agreed<T: PartialEq + Copy>(
    said: &[(&'static str, T)],
) -> Result<Option<(&'static str, T)>, ApiError> {
    let Some(&(name, first)) = said.first() else { return Ok(None) };
    match said.iter().find(|(_, other)| *other != first) {
        None => Ok(Some((name, first))),
        Some((other, _)) => {
            let message = format!("`{name}` and `{other}` contradict each other; give one of them");
            Err(ApiError::field(*other, message))
        }
    }
}

/// `none` turns thinking off; the model knows no degrees, every other value turns it on.
fn effort(fields: &mut Fields, field: &str) -> Result<Option<bool>, ApiError> {
    match fields.text(field)?.as_deref() {
        None => Ok(None),
        Some("none") => Ok(Some(false)),
        Some("minimal" | "low" | "medium" | "high" | "xhigh" | "max") => Ok(Some(true)),
        Some(other) => {
            let name = fields.name(field);
            let message = format!(
                "`{name}` is `{}`, but should be none, minimal, low, medium, high, xhigh or max",
                brief(other)
            );
            Err(ApiError::field(name, message))
        }
    }
}

/// The switch of the Messages API.
fn kind(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    match fields.text("type")?.as_deref() {
        None | Some("auto" | "adaptive") => Ok(None),
        Some("disabled") => Ok(Some(false)),
        Some("enabled") => Ok(Some(true)),
        Some(other) => {
            let name = fields.name("type");
            let found = brief(other);
            let message = format!("`{name}` is `{found}`, but should be enabled or disabled");
            Err(ApiError::field(name, message))
        }
    }
}

fn budget(fields: &mut Fields, field: &str) -> Result<Option<usize>, ApiError> {
    let tokens = fields.integer(field, 0..=i64::MAX)?;
    Ok(tokens.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)))
}

fn variable(extra: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    match extra.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(on)),
        Some(other) => {
            Err(wrong_type(&format!("chat_template_kwargs.{name}"), "true or false", &other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(body: &Value) -> Result<ThinkingOptions, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes(), Mode::Strict)?;
        let options = ThinkingOptions::take(&mut fields, &["mood".to_string()])?;
        fields.finish()?;
        Ok(options)
    }

    #[test]
    fn r47_thinking_is_switched_in_five_ways_that_agree() {
        for (body, on) in [
            (json!({}), None),
            (json!({ "reasoning_effort": "none" }), Some(false)),
            (json!({ "reasoning_effort": "high" }), Some(true)),
            (json!({ "enable_thinking": false }), Some(false)),
            (json!({ "chat_template_kwargs": { "enable_thinking": false } }), Some(false)),
            (json!({ "reasoning": { "effort": "none" } }), Some(false)),
            (json!({ "reasoning": { "enabled": true, "effort": "low" } }), Some(true)),
            (json!({ "thinking": { "type": "disabled" } }), Some(false)),
            (json!({ "thinking": { "type": "enabled" } }), Some(true)),
            (json!({ "enable_thinking": true, "reasoning_effort": "low" }), Some(true)),
            (json!({ "thinking_budget": 0 }), Some(false)),
            (json!({ "thinking_budget": 5 }), None),
        ] {
            assert_eq!(options(&body).unwrap().template.enable_thinking, on, "{body}");
        }
    }

    #[test]
    fn r49_budgets_go_by_three_names() {
        for (body, budget) in [
            (json!({}), None),
            (json!({ "thinking_budget": 64 }), Some(64)),
            (json!({ "thinking": { "type": "enabled", "budget_tokens": 64 } }), Some(64)),
            (json!({ "reasoning": { "max_tokens": 64 }, "thinking_budget": 64 }), Some(64)),
            (json!({ "thinking_budget": 0 }), None),
        ] {
            assert_eq!(options(&body).unwrap().budget, budget, "{body}");
        }
    }

    #[test]
    fn unknown_variables_are_listed_where_a_request_is_lenient() {
        let body =
            json!({ "chat_template_kwargs": { "mood": 1, "moo": 2, "enable_thinking": true } });
        let mut fields = Fields::parse(body.to_string().as_bytes(), Mode::Lenient).unwrap();
        let options = ThinkingOptions::take(&mut fields, &["mood".to_string()]).unwrap();
        assert_eq!(options.template.extra.keys().collect::<Vec<_>>(), ["mood"]);
        assert_eq!(options.template.enable_thinking, Some(true));
        assert_eq!(fields.finish().unwrap(), ["chat_template_kwargs.moo"]);
    }

    #[test]
    fn contradictions_and_unknown_variables_are_refused_by_name() {
        for (body, param) in [
            (json!({ "enable_thinking": true, "reasoning_effort": "none" }), "reasoning_effort"),
            (
                json!({ "reasoning_effort": "none",
                    "chat_template_kwargs": { "enable_thinking": true } }),
                "chat_template_kwargs.enable_thinking",
            ),
            (json!({ "enable_thinking": true, "thinking_budget": 0 }), "thinking_budget"),
            (
                json!({ "thinking_budget": 5, "thinking": { "budget_tokens": 6 } }),
                "thinking.budget_tokens",
            ),
            (json!({ "thinking_budget": -1 }), "thinking_budget"),
            (json!({ "thinking": { "type": "off" } }), "thinking.type"),
            (json!({ "thinking": true }), "thinking"),
            (json!({ "thinking": { "x": 1 } }), "thinking.x"),
            (json!({ "reasoning": { "exclude": true } }), "reasoning.exclude"),
            (json!({ "reasoning": { "effort": "hard" } }), "reasoning.effort"),
            (json!({ "reasoning_effort": "hard" }), "reasoning_effort"),
            (json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs"),
            (json!({ "chat_template_kwargs": { "x1": 1 } }), "chat_template_kwargs.x1"),
            (json!({ "chat_template_kwargs": { "messages": 1 } }), "chat_template_kwargs.messages"),
            (
                json!({ "chat_template_kwargs": { "mood": 1, "moo": 1 } }),
                "chat_template_kwargs.moo",
            ),
        ] {
            let error = options(&body).expect_err(&body.to_string()).body();
            assert_eq!(error["error"]["param"], param, "{body}");
        }
        let kept = options(&json!({ "chat_template_kwargs": { "mood": "calm" } })).unwrap();
        assert_eq!(kept.template.extra["mood"], "calm");
    }
}
