//! A format at work: what may come next in one reply.

use std::sync::Arc;

use lily_model::engine::{Allowed, Constraint, ConstraintError, TokenMask};
use llguidance::Matcher;

use super::vocabulary::Vocabulary;
use super::{NOTHING_FITS, TOO_COMPLEX, UNKEPT_FORM};

/// Keeps one reply to its rules.
pub struct Bound {
    vocabulary: Arc<Vocabulary>,
    text: Text,
    /// From behind the tag of a call on; never moved.
    calls: Option<Matcher>,
    /// The calls under way.
    call: Option<Matcher>,
    /// Nothing has come yet.
    fresh: bool,
    unkept: Arc<[Unkept]>,
}

/// A keyword of a schema that a reply does not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unkept {
    /// Which of the tools has the schema; without it, it is that of the answer.
    pub tool: Option<usize>,
    /// Where in the schema, such as `.properties.a.not`; empty for parts that nobody looked at.
    pub place: String,
}

/// What the text outside of calls may be.
#[derive(Clone)]
pub(crate) enum Text {
    /// Anything.
    Free {
        /// A call counts at the start of a line.
        at_line_start: bool,
    },
    /// What a format allows.
    Bound(Box<Matcher>),
}

impl Bound {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, text: Text, calls: Option<Matcher>) -> Self {
        Self { vocabulary, text, calls, call: None, fresh: true, unkept: Arc::default() }
    }

    /// The same, with what it does not keep.
    pub(crate) fn with_unkept(self, unkept: Vec<Unkept>) -> Self {
        Self { unkept: unkept.into(), ..self }
    }

    /// What the answer does not keep of its schema, and bound calls of those of their tools.
    pub fn unkept(&self) -> &[Unkept] {
        &self.unkept
    }

    /// Whether all of the answer is bound, from its beginning on.
    pub fn binds_answer(&self) -> bool {
        matches!(self.text, Text::Bound(_))
    }

    pub(crate) fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }
}

/// Ids that a grammar allows next; once it is at its end, those that end the text.
pub(crate) fn allowed(
    matcher: &mut Matcher,
    stop_ids: &[u32],
    mask: &mut TokenMask,
) -> Result<(), ConstraintError> {
    if matcher.is_stopped() && !matcher.is_error() {
        stop_ids.iter().for_each(|&id| mask.allow(id));
        return Ok(());
    }
    let may_end = matcher.is_accepting().map_err(failed)?;
    let found = matcher.compute_mask().map_err(failed)?;
    for (to, from) in mask.words_mut().iter_mut().zip(found.as_slice()) {
        *to = *from;
    }
    // Also where such a token would be a part of the text.
    if !may_end {
        stop_ids.iter().for_each(|&id| mask.forbid(id));
    }
    Ok(())
}

fn accept(matcher: &mut Matcher, stop_ids: &[u32], id: u32) -> Result<(), ConstraintError> {
    if matcher.is_stopped() && !matcher.is_error() && stop_ids.contains(&id) {
        return Ok(());
    }
    matcher.consume_token(id).map_err(failed)
}

fn failed(error: impl ToString) -> ConstraintError {
    let reason = match super::reason(&error.to_string()).as_str() {
        NOTHING_FITS => "no token fits what there is of it; ask for one that all its texts can end",
        TOO_COMPLEX => TOO_COMPLEX,
        _ => UNKEPT_FORM,
    };
    ConstraintError(format!("the reply's format cannot be kept any further: {reason}"))
}

impl Constraint for Bound {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        let stop_ids = &self.vocabulary.stop_ids;
        match (&mut self.call, &mut self.text) {
            (Some(call), _) => allowed(call, stop_ids, mask)?,
            (None, Text::Free { .. }) => return Ok(Allowed::All),
            (None, Text::Bound(text)) => {
                allowed(text, stop_ids, mask)?;
                if self.fresh && self.calls.is_some() {
                    self.vocabulary.call.into_iter().for_each(|id| mask.allow(id));
                }
            }
        }
        Ok(Allowed::Masked)
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        let fresh = std::mem::take(&mut self.fresh);
        let stop_ids = &self.vocabulary.stop_ids;
        if let Some(call) = &mut self.call {
            accept(call, stop_ids, id)?;
            // A single call in a free text is over with its last tag.
            if let Text::Free { at_line_start } = &mut self.text
                && call.is_stopped()
                && !call.is_error()
            {
                (self.call, *at_line_start) = (None, false);
            }
            return Ok(());
        }
        let begins = self.vocabulary.call == Some(id);
        match (&mut self.text, &self.calls) {
            (Text::Free { at_line_start: true }, Some(calls)) if begins => {
                self.call = Some(calls.deep_clone());
            }
            (Text::Free { at_line_start }, _) => {
                let bytes = self.vocabulary.tokenizer.token_bytes(id);
                if let Some(last) = bytes.and_then(<[u8]>::last) {
                    *at_line_start = *last == b'\n';
                }
            }
            (Text::Bound(_), Some(calls)) if begins && fresh => {
                self.call = Some(calls.deep_clone());
            }
            (Text::Bound(text), _) => accept(text, stop_ids, id)?,
        }
        Ok(())
    }

    fn boxed(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Clone for Bound {
    /// Shares nothing that changes: no reply depends on what runs beside it.
    fn clone(&self) -> Self {
        Self {
            vocabulary: Arc::clone(&self.vocabulary),
            text: match &self.text {
                Text::Bound(text) => Text::Bound(Box::new(text.deep_clone())),
                free @ Text::Free { .. } => free.clone(),
            },
            calls: self.calls.as_ref().map(Matcher::deep_clone),
            call: self.call.as_ref().map(Matcher::deep_clone),
            fresh: self.fresh,
            unkept: Arc::clone(&self.unkept),
        }
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound")
            .field("binds_answer", &self.binds_answer())
            .field("has_calls", &self.calls.is_some())
            .field("in_call", &self.call.is_some())
            .finish_non_exhaustive()
    }
}
