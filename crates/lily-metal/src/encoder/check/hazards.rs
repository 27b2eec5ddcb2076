//! Where arguments have to lie, and which dispatches conflict.

use lily_plan::{Access, Launch};

use super::super::command::Work;
use super::{Checker, Touch};

impl Checker<'_> {
    /// Every argument lies where the plan's buffer lies.
    pub(super) fn bindings(&self, touch: &Touch) -> Result<(), String> {
        let layout = self.facts.layout;
        let Work::Launch { .. } = touch.work else {
            let slot = touch.places[2];
            let start = layout.slot(0).offset;
            let inside = slot.allocation == layout.slot(0).allocation
                && slot.offset >= start
                && slot.bytes == touch.places[1].bytes;
            return if inside { Ok(()) } else { Err(format!("{slot:?} is no slot")) };
        };
        let launch = self.plan_launch(touch.work).ok_or("no launch")?;
        let arena = layout.arguments();
        let args = touch.places[0];
        let bytes = self.facts.arguments.get(args.offset as usize..args.end() as usize);
        if args.allocation != arena.allocation || bytes != Some(&launch.args[..]) {
            return Err(format!("{args:?} does not hold the arguments of {}", launch.label()));
        }
        for (binding, place) in launch.bindings.iter().zip(&touch.places[1..]) {
            if *place != layout.of(binding.buffer) {
                return Err(format!("{} of {} is at {place:?}", binding.role, launch.label()));
            }
        }
        Ok(())
    }

    fn plan_launch(&self, work: Work) -> Option<&Launch> {
        match work {
            Work::Launch { plan, launch } => self.facts.plans[plan].plan.launches().get(launch),
            Work::Fetch => None,
        }
    }

    /// Whether one writes what the other touches.
    pub(super) fn conflict(&self, a: &Touch, b: &Touch) -> bool {
        let (Some(first), Some(second)) = (self.plan_launch(a.work), self.plan_launch(b.work))
        else {
            // A copy: its argument is read by everyone, its source is read, its slot written.
            let copy = |t: &Touch| t.work == Work::Fetch;
            let writes = |t: &Touch, other: &Touch| {
                let written = if copy(t) { &t.places[2..] } else { &t.places[1..] };
                written.iter().any(|w| other.places[1..].iter().any(|p| p.overlaps(*w)))
            };
            return (copy(a) && writes(a, b))
                || (copy(b) && writes(b, a))
                || self.writes_place(a, b)
                || self.writes_place(b, a);
        };
        let touched = |launch: &Launch, write_only: bool| -> Vec<(usize, Access)> {
            let pick = |(i, b): (usize, &lily_plan::Binding)| {
                let read = b.read.iter().filter(|_| !write_only);
                read.chain(&b.write).map(|access| (i, access.clone())).collect::<Vec<_>>()
            };
            launch.bindings.iter().enumerate().flat_map(pick).collect()
        };
        let meets = |writer: (&Launch, &Touch), other: (&Launch, &Touch)| {
            touched(writer.0, true).iter().any(|(i, write)| {
                touched(other.0, false).iter().any(|(j, access)| {
                    writer.1.places[i + 1].overlaps(other.1.places[j + 1])
                        && (writer.0.bindings[*i].buffer != other.0.bindings[*j].buffer
                            || write.bound.overlaps(&access.bound))
                })
            })
        };
        meets((first, a), (second, b)) || meets((second, b), (first, a))
    }

    /// Whether a launch writes what a copy reads.
    fn writes_place(&self, writer: &Touch, copy: &Touch) -> bool {
        let Some(launch) = self.plan_launch(writer.work) else { return false };
        let written = launch.bindings.iter().zip(&writer.places[1..]);
        let mut written = written.filter(|(b, _)| b.write.is_some()).map(|(_, place)| place);
        copy.work == Work::Fetch && written.any(|place| place.overlaps(copy.places[1]))
    }
}
