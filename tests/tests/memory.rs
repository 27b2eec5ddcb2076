//! Memory of a session: computed before anything is allocated, and refused with the numbers.

#![allow(clippy::unwrap_used)]

use lily_cpu::Numerics;
use lily_kernels::{ModelShape, SessionShape};
use lily_model::Checkpoint;
use lily_model::engine::{EngineError, EngineOptions, MemoryPlan, largest_context};
use lily_model::plan::{model_shape, splits};
use lily_plan::{MemoryBudget, Precision};
use lily_tests::plan_model::full_size_config;
use lily_tests::{GOLDEN, Golden, cpu, load};

fn session(capacity: usize, chunk: usize, batch: usize, run_ahead: usize) -> SessionShape {
    SessionShape {
        batch,
        tokens: chunk.min(capacity),
        capacity,
        run_ahead,
        splits: splits(capacity),
        ring: 64,
        logit_rows: batch,
        precision: Precision::BF16,
    }
}

fn full_size() -> ModelShape {
    model_shape(&full_size_config())
}

#[test]
fn the_full_size_model_takes_what_its_dimensions_say() {
    let shape = full_size();
    let plan = MemoryPlan::new(&shape, &session(262_144, 512, 1, 1));
    // 10 layers, keys and values, 2 heads of 256, 2 bytes: 20,480 bytes a token.
    let kv = 20_480 * 262_144;
    // 30 layers with 4 columns of 8,192 channels, and two states of 32 heads of 128 x 128, in f32.
    let conv = 30 * 4 * 8_192 * 4;
    let state = 30 * 2 * 32 * 128 * 128 * 4;
    assert_eq!((kv, conv, state), (5_368_709_120, 3_932_160, 125_829_120));
    assert_eq!(plan.state, kv + conv + state);

    // One row of a chunk, in bytes. Residual stream, its copy, sums of squares:
    let residual = 4 * 2_048 + 2 * 2_048 + 4 * 256;
    // z, b and a, gated output; conv inputs; q, k, v; gates; the core; chunk form u, w, g, p.
    let deltanet = 2 * 4_096 + 4 * 64 + 2 * 4_096 + 4 * 8_192 + 2 * (2_048 + 2_048 + 4_096);
    let chunk_form = 4 * (32 + 32) + 4 * 4_096 + 4 * (4_096 + 4_096 + 32 + 32 * 64);
    // Queries, gate, keys, values; queries after rotary, output.
    let attention = 4 * 4_096 + 2 * 4_096 + 2 * 4 * 512 + 2 * 4_096 + 2 * 4_096;
    // Router; ids and weights; sorted rows: token, slot, inner; outputs of 9 experts.
    let experts = 4 * 257 + 2 * 4 * 9 + 9 * (4 + 4 + 2 * 512) + 4 * 9 * 2_048;
    let rows = 512 * (residual + deltanet + chunk_form + attention + experts);
    // 256 + 4,096 / 32 tiles of routed rows and 512 / 32 of the shared expert, four words each.
    let work = 16 * (256 + 128 + 16);
    // Blocks of attention and their sums; inner rows and sums of squares of a decode step.
    let decode = 16 * 128 * (256 + 2) * 4 + 2 * 9 * 512 + 4 * 32 * 8;
    // Logits, and a candidate for each 32 of them.
    let head = 4 * 248_320 + 2 * 4 * 7_760;
    // Control row, stop list, how to draw, output ring, prompt.
    let control = 4 * (8 + 8 + 8 + 64 + 512);
    assert_eq!(plan.scratch, rows + work + decode + head + control);
}

#[test]
fn the_largest_context_fits_and_one_more_does_not() {
    let mut shapes: Vec<ModelShape> = GOLDEN
        .iter()
        .map(|name| model_shape(Checkpoint::open(&Golden::open(name).folder).unwrap().config()))
        .collect();
    shapes.push(full_size());
    for shape in &shapes {
        for (chunk, batch, run_ahead) in [(1, 1, 1), (512, 1, 1), (512, 3, 4), (64, 70, 2)] {
            let total = |context| {
                MemoryPlan::new(shape, &session(context, chunk, batch, run_ahead)).total()
            };
            let asked = session(1 << 24, chunk, batch, run_ahead);
            let least = total(2);
            assert_eq!(largest_context(shape, &asked, least - 1), 0);
            assert_eq!(largest_context(shape, &asked, 0), 0);
            assert_eq!(largest_context(shape, &asked, least), 2);
            assert_eq!(largest_context(shape, &asked, u64::MAX), 1 << 24);
            // Around every border where chunk or blocks of keys change, and far from them.
            for context in [3, 63, 64, 65, 511, 512, 513, 1024, 1025, 8192, 8193, 40_000, 1 << 20] {
                let limit = total(context);
                assert_eq!(largest_context(shape, &asked, limit), context);
                assert_eq!(largest_context(shape, &asked, limit - 1), context - 1);
            }
        }
    }
}

/// R22, R23: refused before anything is allocated, with the numbers and what would fit.
#[test]
fn a_context_that_does_not_fit_is_refused_with_one_that_does() {
    let golden = Golden::open("generic");
    let load_with = |context, chunk, limit| {
        let options = EngineOptions {
            context,
            chunk,
            memory: Some(MemoryBudget { limit, weights: 0 }),
            ..EngineOptions::default()
        };
        load(&golden.folder, cpu(Numerics::Exact), options)
    };
    for (limit, chunk) in [(4_000_000, 64), (6_000_000, 512), (40_000_000, 512)] {
        let Err(error) = load_with(1 << 24, chunk, limit) else { panic!("{limit} bytes suffice") };
        let EngineError::Memory { context, needed, limit: stated, largest } = error else {
            panic!("{error}");
        };
        assert_eq!((context, stated), (1 << 24, limit));
        let text = error.to_string();
        for number in [1 << 24, needed, limit, largest as u64] {
            assert!(text.contains(&number.to_string()), "{text}");
        }
        assert!(text.ends_with(&format!("start with --ctx {largest}")), "{text}");
        let engine = load_with(largest, chunk, limit).unwrap();
        assert_eq!(engine.session().capacity, largest);
        match load_with(largest + 1, chunk, limit) {
            Err(EngineError::Memory { largest: l, .. }) => assert_eq!(l, largest),
            other => panic!("one position more is accepted: {:?}", other.map(|_| ())),
        }
    }
    let text = load_with(64, 64, 1000).err().unwrap().to_string();
    assert!(text.contains("no context fits"), "{text}");
}

/// Sequences that do not fit are left out if that is asked for, and refused if not.
#[test]
fn fewer_sequences_are_taken_where_memory_has_no_room_for_all() {
    let golden = Golden::open("generic");
    let load_with = |batch, shrink_batch, limit| {
        let memory = Some(MemoryBudget { limit, weights: 0 });
        let base = EngineOptions { context: 256, chunk: 64, memory, ..EngineOptions::default() };
        let options = EngineOptions { batch, shrink_batch, ..base };
        load(&golden.folder, cpu(Numerics::Exact), options)
    };
    let shape = load_with(1, false, u64::MAX).unwrap();
    let needed = |batch| {
        let session = SessionShape { batch, logit_rows: batch, ..*shape.session() };
        MemoryPlan::new(shape.shape(), &session).total()
    };
    for batch in 1..4 {
        for limit in [needed(batch), needed(batch + 1) - 1] {
            let mut engine = load_with(4, true, limit).unwrap();
            assert_eq!((engine.session().batch, engine.options().batch), (batch, batch));
            for _ in 0..batch {
                engine.open().unwrap();
            }
            assert!(matches!(engine.open(), Err(EngineError::NoSequence(_))));
            let refused = load_with(4, false, limit).err();
            assert!(matches!(refused, Some(EngineError::Memory { .. })), "{refused:?}");
        }
    }
    assert_eq!(load_with(4, true, needed(4)).unwrap().session().batch, 4);
    let none = load_with(4, true, needed(1) - 1).err();
    assert!(matches!(none, Some(EngineError::Memory { .. })), "{none:?}");
}

/// Where the weights lie in the same memory, they are counted first.
#[test]
fn weights_count_where_they_share_the_memory() {
    let golden = Golden::open("generic");
    let load_with = |limit, weights| {
        let memory = Some(MemoryBudget { limit, weights });
        let options = EngineOptions { memory, ..EngineOptions::default() };
        load(&golden.folder, cpu(Numerics::Exact), options)
    };
    let text = load_with(5_000_000, 5_000_001).err().unwrap().to_string();
    assert!(text.contains("the weights need 5000001 bytes, but 5000000 are available"), "{text}");
    let Err(EngineError::Memory { limit, .. }) = load_with(5_001_000, 5_000_000) else {
        panic!("1000 bytes suffice");
    };
    assert_eq!(limit, 1000);
    assert!(load_with(1 << 40, 5_000_000).is_ok());
}

#[test]
fn options_outside_of_their_ranges_are_refused_by_name() {
    let golden = Golden::open("generic");
    let base = EngineOptions { context: 64, chunk: 16, ..EngineOptions::default() };
    for (options, text) in [
        (EngineOptions { context: 1, ..base }, "context is 1, need 2 to 16777216"),
        (EngineOptions { context: usize::MAX, ..base }, "context is 18446744073709551615, need 2"),
        (EngineOptions { batch: 0, ..base }, "batch is 0, need 1 to 1024"),
        (EngineOptions { chunk: 0, ..base }, "chunk is 0, need 1 to 16384"),
        (EngineOptions { chunk: 16_385, ..base }, "chunk is 16385, need 1 to 16384"),
        (EngineOptions { run_ahead: 0, ..base }, "run_ahead is 0, need 1 to 32"),
        (EngineOptions { steps_ahead: 2, ..base }, "steps_ahead is 2, need 0 to 1"),
    ] {
        let error = load(&golden.folder, cpu(Numerics::Exact), options).err().unwrap();
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
