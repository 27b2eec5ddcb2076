//! The oracle: sorts the whole row.

use std::cmp::Ordering;

use lily_plan::{ReferenceIo, control};

use super::{Args, Draw, bind};
use crate::choice;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let args: Args = io.args();
    let a = args.choice;
    let (control, stop_ids) = (io.i32(bind::CONTROL), io.i32(bind::STOP_IDS));
    let (values, logits) = (io.f32(bind::BEST_VALUE), io.f32(bind::LOGITS));
    let (sampling, groups) = (io.i32(bind::SAMPLING), args.groups());
    for row in a.rows() {
        let Some(was) = a.control_row(&control, row) else { continue };
        let sequence = a.step.sequence_of(row);
        let rule = Draw::from_words(&sampling[sequence * Draw::WORDS..]);
        let token = choice::best(&values[row * groups..(row + 1) * groups], 0..).map(|_| {
            let logits = &logits[row * args.vocab as usize..][..args.vocab_used as usize];
            let mut ids: Vec<usize> = (0..logits.len()).collect();
            // Stable: the lowest id is first on ties. There is no NaN.
            ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal));
            ids.truncate(rule.top_k());
            let candidates: Vec<f32> = ids.iter().map(|&id| logits[id]).collect();
            ids[rule.choose(&candidates, a.position(&was).max(0) as u64)] as i32
        });
        let stops = &stop_ids[sequence * control::STOP_IDS..][..control::STOP_IDS];
        if let Some(token) = token {
            io.store_i32(bind::OUTPUT, a.ring_at(sequence, &was), [token]);
        }
        io.store_i32(bind::CONTROL, sequence * control::WORDS, a.next(was, token, stops));
    }
}
