//! Calls of tools as a grammar, and what of the tools' schemas it does not keep.

use std::collections::HashSet;

use llguidance::Matcher;
use llguidance::api::GrammarWithLexer;
use serde_json::{Value, json};

use super::bound::Unkept;
use super::calls::{self, Callable, Calls, as_printed};
use super::keywords::Fault;
use super::parameters::{Parameters, ROOT, ValueRule};
use super::plain::{Plain, plain};
use super::{
    FormatError, Maker, NOTHING_FITS, Rules, TOO_COMPLEX, UNKEPT_FORM, ends, keywords, limits,
    place,
};
use crate::parser::ToolSpec;

/// Tools that are looked at for the one at fault.
const SUSPECTS: usize = 64;
/// Parts of one value that are left out because they cannot be kept.
const MOST_LEFT_OUT: usize = 16;
/// Why a call does not give a value.
const UNFIT: &str = "no value fits it";
/// Longest text of a grammar, in bytes: a value with references brings its whole schema.
const LONGEST_CALLS: usize = 8 << 20;

impl Maker<'_> {
    /// A grammar of calls, and what it does not keep.
    pub(super) fn calls(
        &self,
        rules: &Rules<'_>,
        calls: Calls,
    ) -> Result<(Matcher, Vec<Unkept>), FormatError> {
        let mut tools = Vec::with_capacity(rules.tools.len());
        let mut unkept = Vec::new();
        let mut parts = 0;
        for (index, tool) in rules.tools.iter().enumerate() {
            if self.patience.has_ended() {
                return Err(FormatError::GivenUp);
            }
            let refused = |place: &str, reason| FormatError::Tool {
                tool: index,
                place: place.into(),
                reason,
            };
            parts +=
                limits::check_schema(&tool.parameters).map_err(|reason| refused("", reason))?;
            if parts > limits::MOST_TOOL_PARTS {
                let most = limits::MOST_TOOL_PARTS;
                let reason = format!(
                    "with the tools in front of it the schemas have {parts} parts, but at most {most} are \
                     supported; offer fewer tools at once"
                );
                return Err(refused("", reason));
            }
            let schema = match &tool.parameters {
                Value::Null => Value::Null,
                schema => {
                    for Fault { place, reason } in keywords::faults(schema) {
                        note(rules, &mut unkept, index, place, reason)?;
                    }
                    let Plain { schema, told } = plain(&keywords::without_faults(schema));
                    let told = told.into_iter().map(|place| Unkept { tool: Some(index), place });
                    unkept.extend(told);
                    // Names that are listed have become properties.
                    limits::check_schema(&schema).map_err(|reason| refused("", reason))?;
                    schema
                }
            };
            if let Some(Fault { place, reason }) = ends::endless(&schema) {
                note(rules, &mut unkept, index, place, reason)?;
            }
            let parameters = Parameters::of(&schema);
            for place in &parameters.unkept {
                note(rules, &mut unkept, index, place.clone(), "no call can be kept to it".into())?;
            }
            tools.push(Callable { tool, parameters });
        }
        let values = tools.iter().flat_map(|tool| tool.parameters.values());
        let is_large = |rule: &ValueRule| match rule {
            ValueRule::Json { schema, .. } => limits::check_steps(schema).is_err(),
            _ => false,
        };
        let has_large = values.map(|(_, rule)| rule).any(is_large);
        if !has_large && let Ok(matcher) = self.compile_calls(&tools, calls)? {
            return Ok((matcher, once(unkept)));
        }
        // Some keyword of a value is not supported. Without those of tools that are not strict there
        // may be a grammar.
        for (index, Callable { tool, parameters }) in tools.iter_mut().enumerate() {
            self.relax(rules, index, parameters, &mut unkept)?;
            self.relax_texts(rules, (index, tool), parameters, &mut unkept)?;
        }
        match self.compile_calls(&tools, calls)? {
            Ok(matcher) => Ok((matcher, once(unkept))),
            Err(reason) => Err(self.culprit(&tools, calls, reason)),
        }
    }

    /// The grammar of tools, or why there is none, which is told in the library's words.
    fn compile_calls(
        &self,
        tools: &[Callable<'_>],
        calls: Calls,
    ) -> Result<Result<Matcher, String>, FormatError> {
        let grammar = calls::grammar(tools, calls, &self.formats.vocabulary)?;
        if grammar.len() > LONGEST_CALLS {
            return Ok(Err(TOO_COMPLEX.into()));
        }
        match self.compile(GrammarWithLexer::from_lark(grammar)) {
            Err(_) if self.patience.has_ended() => Err(FormatError::GivenUp),
            compiled => Ok(compiled),
        }
    }

    /// Makes values lenient whose schema cannot be kept in all its parts.
    fn relax(
        &self,
        rules: &Rules<'_>,
        tool: usize,
        parameters: &mut Parameters,
        unkept: &mut Vec<Unkept>,
    ) -> Result<(), FormatError> {
        let compile = |schema: &Value, lenient| {
            limits::check_steps(schema)?;
            let schema = as_printed(schema, lenient);
            self.compile(GrammarWithLexer::from_json_schema(schema)).map(drop)
        };
        for (place, rule) in parameters.values_mut() {
            let ValueRule::Json { schema, lenient } = rule else { continue };
            let Err(reason) = compile(schema, false) else { continue };
            let at = |below: &str| match below.strip_prefix(&format!(".$defs.{ROOT}")) {
                // The whole schema is among the definitions of a part with references.
                Some(place) => place.to_owned(),
                None => format!("{place}{below}"),
            };
            let fault = |schema: &Value, lenient| {
                place::fault(schema, |part| compile(part, lenient).is_err())
            };
            let mut places = place::unsupported(schema);
            // Where it is not a keyword by itself the smallest part at fault is looked for.
            if places.is_empty() || rules.is_strict(tool) {
                places = vec![fault(schema, false)];
            }
            for below in &places {
                note(rules, unkept, tool, at(below), reason.clone())?;
            }
            *lenient = true;
            // Parts at fault whose words the library knows are left out, one after the other, and if there are
            // too many, all of it.
            for left in (0..MOST_LEFT_OUT).rev() {
                if self.patience.has_ended() {
                    return Err(FormatError::GivenUp);
                }
                let Err(reason) = compile(schema, true) else { break };
                let below = if left == 0 { String::new() } else { fault(schema, true) };
                if below.is_empty() && fits_nothing(&reason) {
                    *rule = ValueRule::Never(UNFIT);
                    break;
                }
                unkept.push(Unkept { tool: Some(tool), place: at(&below) });
                match place::part_mut(schema, &below) {
                    Some(part) if *part != of_its_type(part) => *part = of_its_type(part),
                    _ => *schema = Value::Bool(true),
                }
            }
        }
        Ok(())
    }

    /// Frees texts whose expressions are too much work together.
    fn relax_texts(
        &self,
        rules: &Rules<'_>,
        (index, tool): (usize, &ToolSpec),
        parameters: &mut Parameters,
        unkept: &mut Vec<Unkept>,
    ) -> Result<(), FormatError> {
        for (place, rule) in parameters.values_mut() {
            let ValueRule::Text { patterns, .. } = rule else { continue };
            if patterns.is_empty() {
                continue;
            }
            let alone = [Callable { tool, parameters: Parameters::one(rule.clone()) }];
            if let Err(reason) = self.compile_calls(&alone, Calls::One)? {
                note(rules, unkept, index, place.into(), reason)?;
                if let ValueRule::Text { patterns, .. } = rule {
                    patterns.clear();
                }
            }
        }
        Ok(())
    }

    /// Which of the tools has no grammar. What the library says of it would quote a text that the
    /// client has never seen.
    fn culprit(&self, tools: &[Callable<'_>], calls: Calls, reason: String) -> FormatError {
        let alone = |tool| self.compile_calls(std::slice::from_ref(tool), calls);
        let found = tools.iter().take(SUSPECTS).position(|tool| matches!(alone(tool), Ok(Err(_))));
        let reason = match reason.as_str() {
            TOO_COMPLEX => reason,
            _ => UNKEPT_FORM.into(),
        };
        match found {
            Some(tool) => FormatError::Tool { tool, place: String::new(), reason },
            None => super::refused(reason),
        }
    }
}

/// Whether it is said of a schema that there is no value of it.
fn fits_nothing(reason: &str) -> bool {
    reason == NOTHING_FITS || reason.starts_with("Unsatisfiable schema")
}

/// A schema that keeps no more than the type of another one.
fn of_its_type(schema: &Value) -> Value {
    match schema.get("type") {
        Some(name) => json!({ "type": name }),
        None => Value::Bool(true),
    }
}

/// Notes what is not kept of a tool; a strict one is refused.
fn note(
    rules: &Rules<'_>,
    unkept: &mut Vec<Unkept>,
    tool: usize,
    place: String,
    reason: String,
) -> Result<(), FormatError> {
    if rules.is_strict(tool) {
        return Err(FormatError::Tool { tool, place, reason });
    }
    unkept.push(Unkept { tool: Some(tool), place });
    Ok(())
}

/// Each of them where it comes first.
fn once(unkept: Vec<Unkept>) -> Vec<Unkept> {
    let mut seen = HashSet::new();
    let first: Vec<bool> = unkept.iter().map(|one| seen.insert((one.tool, &one.place))).collect();
    unkept.into_iter().zip(first).filter_map(|(one, is_first)| is_first.then_some(one)).collect()
}
