//! A launch that is refused ends the request that it served, and nothing else. A fault, after which a device is lost, ends
//! all requests with an error, and nothing hangs or panics.

#![allow(clippy::unwrap_used)]

use lily_cpu::Numerics;
use lily_model::engine::{Engine, EngineError, EngineOptions, Finish, Generation, Progress, Run};
use lily_model::sampling::Sampling;
use lily_plan::{DeviceError, Step};
use lily_tests::faulty::{Fault, Faulty, Kind, Switch};
use lily_tests::{Golden, cpu};

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
fn a_refused_launch_ends_its_request_by_name_and_the_others_go_on() {
    let golden = Golden::open("generic");
    let want = wanted(&golden);
    for (step, after, name) in [
        (first_decodes as fn(Step) -> bool, 0, "router.0"),
        (first_decodes, 5, "router.0"),
        (first_prefills, 0, "gdn_gate.0"),
        (first_prefills, 2, "gdn_gate.0"),
    ] {
        let (mut engine, switch) = engine(&golden);
        let mut requests: Vec<_> = (0..3).map(|of| Request::start(&mut engine, of)).collect();
        switch.set(Some(Fault { step, launch: 4, kind: Kind::Refused, after }));
        in_turns(&mut engine, &mut requests);
        let label = format!("{name} after {after}");
        let error = requests[0].error.take().unwrap();
        assert_eq!(named(&error), (name.into(), 4), "{label}");
        assert!(requests[0].tokens.len() < LIMIT && want[0].starts_with(&requests[0].tokens));
        for (request, want) in requests[1..].iter().zip(&want[1..]) {
            assert!(request.error.is_none(), "{label}: {:?}", request.error);
            assert_eq!((&request.tokens, request.run.finish()), (want, Some(Finish::Length)));
        }
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

#[test]
fn a_fault_ends_every_request_with_an_error_that_says_so() {
    let golden = Golden::open("generic");
    let want = wanted(&golden);
    for (step, after) in [(first_decodes as fn(Step) -> bool, 2), (first_prefills, 1)] {
        let (mut engine, switch) = engine(&golden);
        let mut requests: Vec<_> = (0..3).map(|of| Request::start(&mut engine, of)).collect();
        switch.set(Some(Fault { step, launch: 7, kind: Kind::Fault, after }));
        in_turns(&mut engine, &mut requests);
        for (request, want) in requests.iter().zip(&want) {
            let error = request.error.as_ref().unwrap();
            assert!(is_lost(error), "{error}");
            assert!(want.starts_with(&request.tokens) && request.tokens.len() < LIMIT);
        }
        // Whatever is asked of it now ends the same way.
        for request in &requests {
            engine.close(request.run.sequence());
        }
        for _ in 0..4 {
            assert!(is_lost(&engine.probe().unwrap_err()));
        }
    }
}

fn is_lost(error: &EngineError) -> bool {
    matches!(error, EngineError::Device(DeviceError::Lost { .. }))
}
