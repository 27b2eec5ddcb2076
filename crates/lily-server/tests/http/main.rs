//! The server over HTTP. One program, since each is linked on its own.

mod common;

mod agents;
mod bounds;
mod budgets;
mod calls;
mod choices;
mod connections;
mod failures;
mod forced_calls;
mod logprobs;
mod operations;
mod page;
mod refusals;
mod replies;
mod reports;
mod reuse;
mod scripted;
mod several;
mod structured;
mod work;
