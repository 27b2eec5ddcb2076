//! A launch that fails ends the request that it served, and nothing else.

#![allow(clippy::unwrap_used)]

use lily_cpu::Numerics;
use lily_model::engine::{
    Engine, EngineError, EngineOptions, Finish, Generation, Progress, Run, SequenceId,
};
use lily_model::plan::PrefillEnd;
use lily_model::sampling::Sampling;
use lily_plan::{DeviceError, Step};
use lily_tests::faulty::{Fault, Faulty, Kind, Switch};
use lily_tests::{Golden, cpu, max_difference};

/// Tokens of a prompt and of the text behind it.
const PROMPT: usize = 20;
const LIMIT: usize = 12;

fn engine(golden: &Golden) -> (Engine, Switch) {
    let (device, switch) = Faulty::new(cpu(Numerics::Exact));
    let options = EngineOptions {
        context: 160,
        batch: 3,
        chunk: 8,
        run_ahead: 2,
        steps_ahead: 2,
        ..EngineOptions::default()
    };
    (golden.engine(Box::new(device), options), switch)
}

fn prompt(of: usize) -> Vec<u32> {
    (0..PROMPT as u32).map(|i| (7 + 13 * of as u32 + 29 * i) % 250).collect()
}

/// Greedy on the device, drawn on the device, and greedy on the host.
fn generation(of: usize) -> Generation {
    let drawn = Sampling { temperature: 1.0, top_k: 20, seed: 5, ..Sampling::greedy() };
    let sampling = if of == 1 { drawn } else { Sampling::greedy() };
    let logprobs = (of == 2).then_some(0);
    Generation { limit: LIMIT, sampling, logprobs, ..Generation::default() }
}

/// A request with what it has given.
struct Request {
    run: Run,
    tokens: Vec<u32>,
    error: Option<EngineError>,
}

impl Request {
    fn start(engine: &mut Engine, of: usize) -> Self {
        let sequence = engine.open().unwrap();
        let run = engine.start(sequence, &prompt(of), generation(of)).unwrap();
        Self { run, tokens: Vec::new(), error: None }
    }

    /// One chunk or token; `false` once it has ended.
    fn advance(&mut self, engine: &mut Engine) -> bool {
        match engine.advance(&mut self.run) {
            Ok(Some(progress)) => {
                self.tokens.extend(Progress::token(&progress));
                self.run.finish().is_none()
            }
            Ok(None) => false,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    fn finish(&mut self, engine: &mut Engine) {
        while self.advance(engine) {}
        engine.close(self.run.sequence());
    }
}

/// Requests in turns until all have ended.
fn in_turns(engine: &mut Engine, requests: &mut [Request]) {
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for request in &mut *requests {
            goes_on |= request.error.is_none() && request.advance(engine);
        }
    }
}

/// What the requests give without a fault.
fn wanted(golden: &Golden) -> Vec<Vec<u32>> {
    let (mut engine, _) = engine(golden);
    let run = |of| {
        let mut request = Request::start(&mut engine, of);
        request.finish(&mut engine);
        assert_eq!(request.tokens.len(), LIMIT);
        request.tokens
    };
    (0..3).map(run).collect()
}

/// Decode steps of the first sequence alone.
fn first_decodes(step: Step) -> bool {
    step == Step::Decode { batch: 1 }
}

fn first_prefills(step: Step) -> bool {
    matches!(step, Step::Prefill { sequence: 0, .. })
}

/// Kernel and index of the launch that an error names.
fn named(error: &EngineError) -> (String, usize) {
    match error {
        EngineError::Device(DeviceError::Launch { kernel, launch, .. }) => {
            (kernel.clone(), *launch)
        }
        other => panic!("no launch is named: {other}"),
    }
}

#[test]
fn a_launch_that_fails_ends_its_request_by_name_and_the_others_go_on() {
    let golden = Golden::open("generic");
    let want = wanted(&golden);
    for (step, kind, after, name) in [
        (first_decodes as fn(Step) -> bool, Kind::Late, 0, "router.0"),
        (first_decodes, Kind::Late, 5, "router.0"),
        (first_decodes, Kind::AtOnce, 3, "router.0"),
        (first_prefills, Kind::Late, 1, "gdn_gate.0"),
        (first_prefills, Kind::AtOnce, 0, "gdn_gate.0"),
    ] {
        let (mut engine, switch) = engine(&golden);
        let mut requests: Vec<_> = (0..3).map(|of| Request::start(&mut engine, of)).collect();
        let fault = Fault { step, launch: 4, kind, after };
        switch.set(Some(fault));
        in_turns(&mut engine, &mut requests);
        let label = format!("{kind:?} after {after}");
        let error = requests[0].error.take().unwrap();
        assert_eq!(named(&error), (name.into(), 4), "{label}");
        assert!(requests[0].tokens.len() < LIMIT && want[0].starts_with(&requests[0].tokens));
        for (request, want) in requests[1..].iter().zip(&want[1..]) {
            assert!(request.error.is_none(), "{label}: {:?}", request.error);
            assert_eq!((&request.tokens, request.run.finish()), (want, Some(Finish::Length)));
        }
        // Once when it failed, and once when it was found.
        assert_eq!(switch.losses(), if kind == Kind::Late { 2 } else { 0 }, "{label}");
        switch.set(None);
        for request in &requests {
            engine.close(request.run.sequence());
        }
        engine.probe().unwrap();
        let mut again = Request::start(&mut engine, 0);
        again.finish(&mut engine);
        assert_eq!(again.tokens, want[0], "{label}");
    }
}

/// The chunk of another sequence waits for the steps under way, and hears of their failure first.
#[test]
fn a_chunk_beside_steps_that_fail_is_not_blamed() {
    let golden = Golden::open("generic");
    let want = wanted(&golden);
    let (mut engine, switch) = engine(&golden);
    let mut first = Request::start(&mut engine, 0);
    while first.tokens.len() < 3 {
        assert!(first.advance(&mut engine));
    }
    let mut second = Request::start(&mut engine, 1);
    switch.set(Some(Fault { step: first_decodes, launch: 9, kind: Kind::Late, after: 0 }));
    // Its last step of three is under way when the next one fails.
    assert!(first.advance(&mut engine));
    second.finish(&mut engine);
    assert_eq!((second.error.is_none(), &second.tokens), (true, &want[1]));
    first.finish(&mut engine);
    assert_eq!(named(&first.error.unwrap()).1, 9);
    assert!(want[0].starts_with(&first.tokens) && first.tokens.len() >= 4);
}

#[test]
fn a_failure_that_does_not_come_again_ends_the_request_without_a_name() {
    let golden = Golden::open("generic");
    let want = wanted(&golden);
    let (mut engine, switch) = engine(&golden);
    let mut requests: Vec<_> = (0..3).map(|of| Request::start(&mut engine, of)).collect();
    switch.set(Some(Fault { step: first_decodes, launch: 7, kind: Kind::LateOnce, after: 2 }));
    in_turns(&mut engine, &mut requests);
    let error = requests[0].error.take().unwrap();
    assert!(matches!(error, EngineError::Transient { launches, .. } if launches > 20), "{error}");
    assert!(error.to_string().contains("an illegal address; run again"), "{error}");
    assert_eq!((&requests[1].tokens, &requests[2].tokens), (&want[1], &want[2]));
    assert_eq!(switch.losses(), 1);
}

/// A step that the host asks for by itself, states that are read, and logits that were not read yet.
#[test]
fn a_sequence_at_rest_is_fed_again_before_it_is_used() {
    let golden = Golden::open("odd");
    let (mut engine, switch) = engine(&golden);
    let logits = |engine: &mut Engine, sequence: SequenceId| engine.logits(sequence).unwrap();
    let (a, b) = (engine.open().unwrap(), engine.open().unwrap());
    engine.prefill(b, &prompt(1), PrefillEnd::More).unwrap();
    engine.step(b, 17).unwrap();
    let saved = engine.snapshot(b).unwrap();
    let want = logits(&mut engine, b);
    let lose = |engine: &mut Engine| {
        let before = switch.losses();
        switch.set(Some(Fault { step: first_prefills, launch: 0, kind: Kind::Late, after: 0 }));
        let error = engine.prefill(a, &prompt(0), PrefillEnd::More).unwrap_err();
        assert_eq!(named(&error), ("embed".into(), 0));
        switch.set(None);
        assert_eq!(switch.losses(), before + 2);
    };
    lose(&mut engine);
    assert!(matches!(engine.step(a, 1), Err(EngineError::BadSequence(0))));
    engine.close(a);
    assert_eq!(engine.open().unwrap(), a);
    // The logits belong to the last token, which is fed as the end of a chunk now.
    assert!(max_difference(&logits(&mut engine, b), &want) < 1e-3);
    engine.step(b, 3).unwrap();
    let next = logits(&mut engine, b);
    lose(&mut engine);
    assert_eq!(engine.tokens(b).unwrap().len(), PROMPT + 2);
    let fork = {
        engine.close(a);
        engine.fork(b).unwrap()
    };
    engine.restore(fork, &saved).unwrap();
    engine.step(fork, 3).unwrap();
    assert!(max_difference(&logits(&mut engine, fork), &next) < 1e-3);
}
