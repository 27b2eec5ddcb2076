//! Prompts that go on where an earlier sequence has been give what a cold run gives, and read no more
//! than they say.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_model::engine::{
    CacheMemory, Engine, EngineError, EngineOptions, Finish, Generation, Progress, SequenceId,
};
use lily_model::plan::PrefillEnd;
use lily_model::sampling::Sampling;
use lily_plan::{BufferId, Device, DeviceError, FETCH_BYTES, MemoryBudget, forward_device};
use lily_tests::spoil::Spoiled;
use lily_tests::{Golden, cpu, load, max_difference};

/// Chunks and steps sum in different orders: the logits of two ways to one position.
const EXACT_LOGIT: f32 = 1e-3;
/// Ids that every golden model has.
const IDS: usize = 384;
const CONTEXT: usize = 1024;

fn options() -> EngineOptions {
    let cache = CacheMemory::Bytes(64 << 20);
    EngineOptions { context: CONTEXT, chunk: 128, batch: 2, cache, ..EngineOptions::default() }
}

fn exact() -> Box<dyn Device> {
    let numerics = Numerics::Exact;
    Box::new(CpuDevice::new(CpuOptions { numerics, threads: 1, ..CpuOptions::default() }))
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % bound as u64) as usize
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(IDS) as u32).collect()
    }
}

/// What a request gave.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    /// Bits of the logits behind the last token that is in the states, where they are there.
    logits: Vec<u32>,
    cached: usize,
    /// Tokens of the prompt that were read.
    read: usize,
}

impl Answer {
    /// What must not depend on where it went on.
    fn text(&self) -> (&[u32], &[u32]) {
        (&self.tokens, &self.logits)
    }
}

fn generation(borders: &[usize], limit: usize) -> Generation {
    Generation { limit, borders: borders.to_vec(), ..Generation::default() }
}

/// Runs a request as the server does, and gives its sequence back.
fn request(engine: &mut Engine, prompt: &[u32], generation: Generation) -> Answer {
    let sequence = engine.open_for(prompt).unwrap();
    let answer = run(engine, sequence, prompt, generation);
    engine.keep(sequence).unwrap();
    engine.close(sequence);
    answer
}

fn run(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    generation: Generation,
) -> Answer {
    let mut run = engine.start(sequence, prompt, generation).unwrap();
    let (mut tokens, mut read, mut before) = (Vec::new(), 0, None);
    while let Some(progress) = engine.advance(&mut run).unwrap() {
        match progress {
            Progress::Token(chosen) => tokens.push(chosen.id),
            Progress::Prefilled(now) => {
                read += now - before.unwrap_or(run.cached());
                before = Some(now);
            }
        }
    }
    let logits = engine.logits(sequence).unwrap_or_default();
    let logits = logits.into_iter().map(f32::to_bits).collect();
    assert_eq!(read + run.cached(), prompt.len());
    Answer { tokens, logits, cached: run.cached(), read }
}

/// The state of a sequence is that of a cold run over its tokens.
fn assert_like_cold(engine: &mut Engine, cold: &mut Engine, sequence: SequenceId, label: &str) {
    let ids = engine.tokens(sequence).unwrap().to_vec();
    engine.step(sequence, 17).unwrap();
    let got = engine.logits(sequence).unwrap();
    let other = cold.open().unwrap();
    cold.prefill(other, &ids, PrefillEnd::More).unwrap();
    cold.step(other, 17).unwrap();
    let difference = max_difference(&got, &cold.logits(other).unwrap());
    cold.close(other);
    assert!(difference <= EXACT_LOGIT, "{label}: a logit differs by {difference:e}");
}

/// R1, R4, R6, R7: turns, thoughts that are left out later, edits, inserted blocks.
#[test]
fn turns_of_a_chat_read_only_what_is_behind_their_last_common_border() {
    let golden = Golden::open("generic");
    let mut engine = golden.engine(exact(), options());
    let mut cold =
        golden.engine(exact(), EngineOptions { cache: CacheMemory::Bytes(0), ..options() });
    let mut random = Random(1);
    let (system, question, opening) = (random.ids(200), random.ids(70), random.ids(4));
    let first = [&system[..], &question, &opening].concat();
    let borders = [0, 200, 270];
    let one = request(&mut engine, &first, generation(&borders, 20));
    assert_eq!((one.cached, one.read), (0, 274));
    assert_eq!(one.text(), request(&mut cold, &first, generation(&[], 20)).text());

    // The answer comes back without what was in front of it: its turn begins with other tokens.
    let second = [&first[..270], &random.ids(40), &random.ids(70), &opening].concat();
    let borders = [0, 200, 270, 310, 380];
    let two = request(&mut engine, &second, generation(&borders, 20));
    assert_eq!((two.cached, two.read), (256, 128), "the block in front of the first answer");
    assert_eq!(two.text(), request(&mut cold, &second, generation(&[], 20)).text());

    // The answer comes back as it was generated.
    let third = [&second[..], &two.tokens, &random.ids(25), &opening].concat();
    let three = request(&mut engine, &third, generation(&[], 20));
    assert_eq!(three.cached, second.len() + 19, "the last token was never fed");

    // The second question is asked in another way; the first one is.
    let edited = [&second[..310], &random.ids(40), &opening].concat();
    let edit = request(&mut engine, &edited, generation(&[0, 200, 270, 310, 350], 5));
    assert_eq!(edit.cached, 256);
    assert_eq!(edit.text(), request(&mut cold, &edited, generation(&[], 5)).text());
    let edited = [&system[..], &random.ids(50), &opening].concat();
    let edit = request(&mut engine, &edited, generation(&[0, 200, 250], 5));
    assert_eq!(edit.cached, 192, "the system prompt");
    assert_eq!(edit.text(), request(&mut cold, &edited, generation(&[], 5)).text());
    // A block in between, and another system prompt: nothing is moved to another position.
    let inserted = [&system[..150], &random.ids(10), &system[150..], &question].concat();
    let insert = request(&mut engine, &inserted, generation(&[0, 210], 5));
    assert_eq!(insert.cached, 0);
    assert_eq!(insert.text(), request(&mut cold, &inserted, generation(&[], 5)).text());
    // The place where it parted is kept from now on.
    let again = [&system[..150], &random.ids(70)].concat();
    assert_eq!(request(&mut engine, &again, generation(&[], 5)).cached, 128);
}

/// R2, R14: the same request again, at all small sizes and others.
#[test]
fn the_same_request_again_gives_the_same_bits_and_reads_its_end_only() {
    let golden = Golden::open("heads");
    let mut random = Random(2);
    for sampling in [
        Sampling::greedy(),
        Sampling { temperature: 1.0, top_k: 20, seed: 5, ..Sampling::greedy() },
    ] {
        let mut engine = golden.engine(exact(), options());
        for length in [1, 24, 64, 80, 81, 129, 145] {
            let prompt = random.ids(length);
            let generation = Generation { sampling: sampling.clone(), ..generation(&[], 6) };
            let first = request(&mut engine, &prompt, generation.clone());
            let second = request(&mut engine, &prompt, generation.clone());
            assert_eq!(first.text(), second.text(), "{length} tokens");
            assert_eq!(first.cached, 0);
            assert_eq!(second.cached, length.saturating_sub(17) / 64 * 64);
            // From another place in memory: rows and state come from the host.
            let blocker = engine.open().unwrap();
            let third = request(&mut engine, &prompt, generation);
            assert_eq!(first.text(), third.text(), "{length} tokens, elsewhere");
            assert_eq!(second.cached, third.cached);
            engine.close(blocker);
        }
    }
}

/// R74, R75: a client that leaves at 80 % of its prompt and asks again.
#[test]
fn a_prompt_that_was_left_in_the_middle_goes_on_there_with_the_bits_of_a_cold_run() {
    let golden = Golden::open("odd");
    let prompt = Random(3).ids(500);
    let none = CacheMemory::Bytes(0);
    let mut cold = golden.engine(exact(), EngineOptions { cache: none, ..options() });
    let want = request(&mut cold, &prompt, generation(&[], 8));
    assert_eq!(want.read, 500);
    for left_at in [64, 300] {
        let mut engine = golden.engine(exact(), options());
        let sequence = engine.open_for(&prompt).unwrap();
        let mut run = engine.start(sequence, &prompt, generation(&[], 8)).unwrap();
        while run.prefilled() < left_at {
            engine.advance(&mut run).unwrap();
        }
        engine.cancel(&mut run).unwrap();
        assert_eq!(run.finish(), Some(Finish::Cancelled));
        let reached = run.prefilled();
        assert!((left_at..left_at + 128).contains(&reached));
        assert!(engine.keep(sequence).unwrap());
        assert!(!engine.keep(sequence).unwrap(), "it is there");
        engine.close(sequence);
        let retry = request(&mut engine, &prompt, generation(&[], 8));
        assert_eq!((retry.cached, retry.read), (reached, 500 - reached));
        assert_eq!(retry.text(), want.text(), "left at {left_at}");
    }
}

/// What is kept of a text that was stopped or left anywhere, steps ahead included, is that of a cold
/// run; so is what others do with it meanwhile.
#[test]
fn random_conversations_side_by_side_are_those_of_a_cold_engine() {
    let golden = Golden::open("generic");
    let mut probe = golden.engine(exact(), options());
    request(&mut probe, &Random(4).ids(300), generation(&[], 1));
    // Room for everything, and for three such prompts.
    let few = 3 * probe.cache_use().bytes;
    for (capacity, steps_ahead) in [(64 << 20, 0), (64 << 20, 2), (few, 1)] {
        let cache = CacheMemory::Bytes(capacity);
        let base = EngineOptions { cache, batch: 3, run_ahead: 3, steps_ahead, ..options() };
        let mut engine = golden.engine(exact(), base);
        let none = CacheMemory::Bytes(0);
        let mut cold = golden.engine(exact(), EngineOptions { cache: none, ..options() });
        let mut random = Random(steps_ahead as u64);
        let mut histories: Vec<Vec<u32>> = (0..4).map(|_| random.ids(100)).collect();
        let mut running = Vec::new();
        let mut reused = 0;
        for turn in 0..120 {
            if running.len() < 3 && random.below(4) == 0 {
                let which = random.below(histories.len());
                let cut = random.below(histories[which].len()) + 1;
                let cut = if random.below(3) == 0 { cut } else { histories[which].len() };
                let more = 1 + random.below(40);
                let prompt = [&histories[which][..cut], &random.ids(more)].concat();
                if prompt.len() + 20 < CONTEXT {
                    let sequence = engine.open_for(&prompt).unwrap();
                    let wish = generation(&[cut], 1 + random.below(15));
                    running.push((which, engine.start(sequence, &prompt, wish).unwrap()));
                }
                continue;
            }
            if running.is_empty() {
                continue;
            }
            let at = random.below(running.len());
            let (which, run) = &mut running[at];
            let is_left = random.below(12) == 0;
            if is_left {
                engine.cancel(run).unwrap();
            } else if engine.advance(run).unwrap().is_some() {
                continue;
            }
            let sequence = run.sequence();
            reused += run.cached();
            engine.keep(sequence).unwrap();
            let figures = engine.cache_use();
            assert!(figures.bytes <= figures.capacity, "{figures:?}");
            let tokens = engine.tokens(sequence).unwrap().to_vec();
            if !tokens.is_empty() && tokens.len() < CONTEXT - 1 {
                let label = format!("turn {turn}, {steps_ahead} ahead, {} tokens", tokens.len());
                assert_like_cold(&mut engine, &mut cold, sequence, &label);
                histories[*which] = tokens;
            }
            engine.close(sequence);
            running.remove(at);
        }
        assert!(reused > 200, "{reused} tokens were reused");
        assert_eq!(engine.cache_use().evicted > 0, capacity == few);
    }
}

/// On the processor a prompt that goes on at a state of its own beginning has the bits of one that is read
/// from its first token, whoever has left the state there.
#[test]
fn wherever_a_prompt_goes_on_its_logits_are_those_of_a_cold_run() {
    let golden = Golden::open("generic");
    let none = CacheMemory::Bytes(0);
    for numerics in [Numerics::Exact, Numerics::Int8] {
        let device = || cpu(numerics);
        let mut cold = golden.engine(device(), EngineOptions { cache: none, ..options() });
        let mut random = Random(5);
        let prompt = random.ids(200);
        let sequence = cold.open().unwrap();
        cold.prefill(sequence, &prompt, PrefillEnd::Logits).unwrap();
        let want: Vec<u32> = cold.logits(sequence).unwrap().into_iter().map(f32::to_bits).collect();
        for parted in [64, 100, 128, 183] {
            let mut engine = golden.engine(device(), options());
            let other = [&prompt[..parted], &random.ids(80)].concat();
            request(&mut engine, &other, generation(&[parted], 1));
            let sequence = engine.open_for(&prompt).unwrap();
            let answer = run(&mut engine, sequence, &prompt, generation(&[], 1));
            assert_eq!(answer.cached, parted / 64 * 64);
            assert_eq!(answer.logits, want, "{parted}");
        }
    }
}

/// R15: a state that is not finite is never kept, and one that led to such numbers is dropped.
#[test]
fn r15_nothing_that_is_not_finite_is_kept() {
    let golden = Golden::open("generic");
    let spoiled = Spoiled::new(&golden).poison_token(300);
    let mut engine = load(spoiled.path(), exact(), options()).unwrap();
    let mut random = Random(6);
    let mut sound: Vec<u32> = random.ids(150);
    sound.iter_mut().for_each(|id| *id %= 300);
    let bad = [&sound[..80], &[300], &sound[80..]].concat();
    request(&mut engine, &sound, generation(&[70], 3));
    let states = engine.cache_use().states;
    let sequence = engine.open_for(&bad).unwrap();
    let mut run = engine.start(sequence, &bad, generation(&[70, 130], 3)).unwrap();
    let failed = loop {
        match engine.advance(&mut run) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a poisoned prompt gives no text"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, EngineError::NotFinite { .. }), "{failed}");
    assert!(engine.keep(sequence).is_err(), "a lost sequence");
    engine.close(sequence);
    assert!(engine.cache_use().refused > 0);
    assert!(engine.cache_use().states < states, "the state that it went on at is not trusted");
    assert_eq!(request(&mut engine, &bad[..80], generation(&[], 1)).cached, 0);
}

/// A device that can be told to fail its next copies of more than a few bytes.
struct Brittle {
    inner: Box<dyn Device>,
    failing: Arc<AtomicUsize>,
}

impl Brittle {
    fn copied(&self, bytes: usize) -> Result<(), DeviceError> {
        let left = self.failing.load(Ordering::SeqCst);
        if bytes <= FETCH_BYTES || left == 0 {
            return Ok(());
        }
        self.failing.store(left - 1, Ordering::SeqCst);
        Err(DeviceError::Usage("a copy that was told to fail".into()))
    }
}

impl Device for Brittle {
    forward_device!(inner: name, precision, allocate, compile, submit, wait, run_launch, buffers);

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.copied(out.len())?;
        self.inner.read(buffer, offset, out)
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.copied(data.len())?;
        self.inner.write(buffer, offset, data)
    }
}

#[test]
fn a_copy_that_fails_costs_one_request_and_leaves_nothing_behind() {
    let golden = Golden::open("generic");
    let failing = Arc::new(AtomicUsize::new(0));
    let device = Brittle { inner: exact(), failing: failing.clone() };
    let mut engine = golden.engine(Box::new(device), options());
    let prompt = Random(7).ids(100);
    // While a state is saved.
    let sequence = engine.open_for(&prompt).unwrap();
    let mut run = engine.start(sequence, &prompt, generation(&[], 5)).unwrap();
    failing.store(1, Ordering::SeqCst);
    assert!(matches!(engine.advance(&mut run), Err(EngineError::Device(_))));
    engine.close(sequence);
    assert_eq!((engine.cache_use().bytes, engine.cache_use().states), (0, 0));
    let want = request(&mut engine, &prompt, generation(&[], 5));
    assert_eq!(want.cached, 0);
    // While one is put back.
    let sequence = engine.open_for(&prompt).unwrap();
    let mut run = engine.start(sequence, &prompt, generation(&[], 5)).unwrap();
    failing.store(1, Ordering::SeqCst);
    assert!(matches!(engine.advance(&mut run), Err(EngineError::Device(_))));
    assert!(engine.keep(sequence).is_err(), "a lost sequence");
    engine.close(sequence);
    let again = request(&mut engine, &prompt, generation(&[], 5));
    assert_eq!((again.text(), again.cached), (want.text(), 64));
}

/// R18: never more than was said, from the start on.
#[test]
fn the_cache_is_part_of_the_memory_that_the_device_has() {
    let golden = Golden::open("generic");
    let load_with = |cache, limit, weights| {
        let memory = Some(MemoryBudget { limit, weights });
        let options = EngineOptions { cache, memory, ..options() };
        load(&golden.folder, cpu(Numerics::Exact), options)
    };
    let all = load_with(CacheMemory::Bytes(0), u64::MAX, 0).unwrap();
    let needed = lily_model::engine::MemoryPlan::new(all.shape(), all.session()).total();
    let cache = CacheMemory::Bytes(5_000_000);
    assert!(load_with(cache, needed + 5_000_000, 0).is_ok());
    let refused = load_with(cache, needed + 4_999_999, 0).err().unwrap();
    assert!(matches!(refused, EngineError::Memory { limit, .. } if limit == needed - 1));
    let refused = load_with(cache, 4_000_000, 0).err().unwrap().to_string();
    assert!(
        refused.contains("a cache of 5000000 bytes") && refused.contains("4000000"),
        "{refused}"
    );
    // Half of what is left, if that is enough for anything.
    let spare = |left| {
        let engine = load_with(CacheMemory::Spare, needed + (1 << 30) + left, 1 << 30).unwrap();
        engine.cache_use().capacity
    };
    assert_eq!(spare(20_000_000), 10_000_000);
    assert_eq!(spare(1000), 0);
    assert_eq!(spare(1 << 40), 4 << 30);
}
