//! What binds a reply: formats and forced calls are made ready before the request waits for its turn.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use lily_chat::{Bound, CallRule, FormatError, Formats, Rules};
use lily_text::Tokenizer;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::ApiError;
use crate::fields::brief;
use crate::format::{Asked, shortened};
use crate::tools::Tools;

/// Longest time for one format, waiting for others counted.
const LONGEST: Duration = Duration::from_secs(20);
/// Grammars nest, and are read by recursion.
const STACK: usize = 64 << 20;

/// Makes formats for requests, one at a time and on threads of their own.
pub(crate) struct Binder {
    tokenizer: Tokenizer,
    stop_ids: Vec<u32>,
    /// Made for the first request that needs it.
    formats: OnceLock<Result<Formats, FormatError>>,
    turn: Arc<Semaphore>,
}

/// What a request asks for.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub format: Option<Asked>,
    pub tools: Tools,
}

impl Binder {
    pub fn new(tokenizer: Tokenizer, stop_ids: Vec<u32>) -> Arc<Self> {
        let turn = Arc::new(Semaphore::new(1));
        Arc::new(Self { tokenizer, stop_ids, formats: OnceLock::new(), turn })
    }

    /// What keeps a reply to the wish; `None` if it leaves the reply free.
    pub async fn bind(self: &Arc<Self>, wish: Wish) -> Result<Option<Bound>, ApiError> {
        let Wish { format, tools } = &wish;
        if format.is_none() && !tools.required && !tools.strict.contains(&true) {
            return Ok(None);
        }
        let made = async {
            // The semaphore is never closed.
            let turn = Arc::clone(&self.turn).acquire_owned().await.ok();
            let (sender, receiver) = oneshot::channel();
            let binder = Arc::clone(self);
            let work = move || {
                // Also when nobody waits for it any more.
                let _turn = turn;
                let _ = sender.send(binder.make(&wish));
            };
            let thread = thread::Builder::new().name("lily-format".into()).stack_size(STACK);
            thread
                .spawn(work)
                .map_err(|_| ApiError::internal("there is no thread for a format"))?;
            let failed = |_| Err(ApiError::internal("the format could not be made ready"));
            receiver.await.unwrap_or_else(failed)
        };
        timeout(LONGEST, made).await.unwrap_or_else(|_| Err(ApiError::format_timeout(LONGEST)))
    }

    fn make(&self, wish: &Wish) -> Result<Option<Bound>, ApiError> {
        let formats = self.formats.get_or_init(|| Formats::new(&self.tokenizer, &self.stop_ids));
        let Wish { format, tools } = wish;
        let rules = Rules {
            format: format.as_ref().map(|asked| &asked.format),
            tools: &tools.callable,
            strict: &tools.strict,
            calls: if tools.required { CallRule::Required } else { CallRule::Auto },
            parallel: tools.parallel,
        };
        let bound = match formats {
            Ok(formats) => formats.bind(&rules),
            Err(error) => Err(error.clone()),
        };
        bound.map_err(|error| match (&error, format) {
            (FormatError::Tool { tool, place, reason }, _) => {
                let mut param = format!("tools[{}].function.parameters", tools.first + tool);
                if !place.is_empty() {
                    param = format!("{param}.properties.{}", brief(place));
                }
                let message = format!("`{param}` cannot be kept by a call: {}", shortened(reason));
                ApiError::field(param, message)
            }
            (error, Some(asked)) => asked.refusal(error),
            (error, None) => ApiError::field("tool_choice", error.to_string()),
        })
    }
}
