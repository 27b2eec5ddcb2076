//! The oracle: a full softmax in f64 and a stable sort.

use lily_plan::ReferenceIo;

use super::{Args, bind};
use crate::math::sigmoid;
use crate::routing::rankable;

pub(super) fn run(io: &mut ReferenceIo<'_>) {
    let a: Args = io.args();
    let (control, logits) = (io.i32(bind::CONTROL), io.f32(bind::LOGITS));
    let (experts, top_k) = (a.routing.experts as usize, a.routing.top_k as usize);
    for row in a.step.live_rows(&control).iter() {
        let logits = &logits[row * (experts + 1)..(row + 1) * (experts + 1)];
        let routed: Vec<f64> = logits[..experts].iter().map(|&l| rankable(l).into()).collect();
        let largest = routed.iter().copied().fold(f64::MIN, f64::max);
        let e: Vec<f64> = routed.iter().map(|l| (l - largest).exp()).collect();
        let all: f64 = e.iter().sum();
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&i, &j| {
            routed[j].partial_cmp(&routed[i]).unwrap_or(std::cmp::Ordering::Equal)
        });
        order.truncate(top_k);
        let chosen: f64 = order.iter().map(|&i| e[i] / all).sum();
        let mut route: Vec<f32> = order.iter().map(|&i| (e[i] / all / chosen) as f32).collect();
        let mut ids: Vec<i32> = order.iter().map(|&i| i as i32).collect();
        ids.push(experts as i32);
        route.push(sigmoid(logits[experts]));
        io.store_i32(bind::IDS, row * (top_k + 1), ids);
        io.store(bind::ROUTE, row * (top_k + 1), route);
    }
}
