//! What binds a reply: formats and forced calls are made ready before the request waits for its turn.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lily_chat::{Bound, CallRule, FormatError, Formats, Patience, Rules};
use lily_text::Tokenizer;

use crate::app::Prepared;
use crate::error::ApiError;
use crate::fields::brief;
use crate::format::{Asked, shortened};
use crate::tools::{Tools, parameter};
use crate::workshop::{Missed, Workshop};

/// Longest time for one format, and for its turn to come.
const LONGEST: Duration = Duration::from_secs(20);
/// Formats that are made at once: one that takes long must not stop the others.
const THREADS: usize = 2;

/// Makes formats for requests, on threads of their own.
pub(crate) struct Binder {
    tokenizer: Tokenizer,
    stop_ids: Vec<u32>,
    /// Made for the first request that needs it.
    formats: OnceLock<Result<Formats, FormatError>>,
    workshop: Workshop,
}

/// What a request asks for.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub format: Option<Asked>,
    pub tools: Tools,
}

impl Wish {
    /// The field that asks for something.
    fn param(&self) -> String {
        match &self.format {
            Some(asked) => asked.param.clone(),
            None => "tools".into(),
        }
    }
}

impl Binder {
    pub fn new(tokenizer: Tokenizer, stop_ids: Vec<u32>) -> Arc<Self> {
        let workshop = Workshop::new(THREADS, LONGEST);
        Arc::new(Self { tokenizer, stop_ids, formats: OnceLock::new(), workshop })
    }

    /// Binds a request to the wish, which may leave it free, and lists what is not kept.
    pub async fn bind(
        self: &Arc<Self>,
        prepared: &mut Prepared,
        wish: Wish,
    ) -> Result<(), ApiError> {
        if let (true, Some(asked)) = (wish.tools.required, &wish.format) {
            // Calls leave no answer that it could bind.
            let field = asked.param.split('.').next();
            prepared.ignored.extend(field.map(str::to_owned));
        }
        let (places, param) = (wish.tools.places.clone(), wish.param());
        let made = self.bound(wish).await?;
        let unkept = made.iter().flat_map(Bound::unkept);
        let named = unkept.map(|one| match one.tool {
            Some(tool) => parameter(&places, tool, &one.place),
            None => format!("{param}{}", brief(&one.place)),
        });
        prepared.ignored.extend(named);
        prepared.format = made;
        Ok(())
    }

    /// What keeps a reply to the wish; `None` if it leaves the reply free.
    async fn bound(self: &Arc<Self>, wish: Wish) -> Result<Option<Bound>, ApiError> {
        let Wish { format, tools } = &wish;
        if format.is_none() && !tools.required && !tools.strict.contains(&true) {
            return Ok(None);
        }
        let param = wish.param();
        let binder = Arc::clone(self);
        let made = self.workshop.work(move |patience| binder.make(&wish, patience)).await;
        made.unwrap_or_else(|missed| {
            Err(match missed {
                Missed::Busy(waited) => ApiError::formats_busy(waited),
                Missed::TooLong(limit) => ApiError::format_too_long(&param, limit),
                Missed::Failed => ApiError::internal("the format could not be made ready"),
            })
        })
    }

    fn make(&self, wish: &Wish, patience: &Patience) -> Result<Option<Bound>, ApiError> {
        let formats = self.formats.get_or_init(|| Formats::new(&self.tokenizer, &self.stop_ids));
        let Wish { format, tools } = wish;
        let rules = Rules {
            format: format.as_ref().map(|asked| &asked.format),
            tools: &tools.callable,
            strict: &tools.strict,
            calls: match (tools.required, tools.forbidden) {
                (true, _) => CallRule::Required,
                (_, true) => CallRule::Never,
                _ => CallRule::Auto,
            },
            parallel: tools.parallel,
        };
        let bound = match formats {
            Ok(formats) => formats.bind_with(&rules, patience),
            Err(error) => Err(error.clone()),
        };
        bound.map_err(|error| match (&error, format) {
            (FormatError::Tool { tool, place, reason }, _) => {
                let param = parameter(&tools.places, *tool, place);
                let message = format!("`{param}` cannot be kept by a call: {}", shortened(reason));
                ApiError::field(param, message)
            }
            (error, Some(asked)) => asked.refusal(error),
            (error, None) => ApiError::field("tools", error.to_string()),
        })
    }
}
