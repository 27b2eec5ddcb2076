//! From plans to Metal calls, without Metal.
//!
//! A compiled plan is [recorded](record) once as [`Command`]s: pipelines, bindings with offsets into the
//! [arenas](crate::arena), dispatches, and barriers at stage borders only. A [`Stream`] frames them with
//! command buffers, fences and signals. A host forwards each command to one Metal method, so what can be
//! said of the commands holds for the calls: [`check`](check::check) proves it, and another host may run them on
//! any machine.

pub mod check;
mod command;
mod indirect;
mod limits;
mod recording;
mod stream;
mod submissions;

pub use command::{Command, IndirectCall, IndirectId, PipelineId, Work};
pub use indirect::{DecodeEncoding, Encoded, encode};
pub use limits::{Limits, Pace};
pub use recording::{Body, Bound, Prepared, record, record_chain, record_one};
pub use stream::Stream;
pub use submissions::{DecodeSubmission, Estimate, SUBMISSION_SECONDS};
