//! Planted faults: each breaks one place of a correct text, and must be found with file and line.

#![cfg(target_os = "linux")]

#[path = "negative/faults.rs"]
mod faults;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use faults::{FAULTS, Fault, Found};
use lily_kernels::gpu::Source;
use lily_kernels::gpu::translate::{Dialect, translate};
use lily_msl_test::{Block, Build, CompileError, Geometry, Order, compile};

/// Contents of a buffer, and what they must be after the launch.
type Contents = (Vec<u8>, Vec<u8>);

/// A correct text with its launch.
struct Victim {
    name: &'static str,
    text: &'static str,
    geometry: Geometry,
    /// Of the buffers behind the arguments.
    buffers: fn() -> Vec<Contents>,
}

const VICTIMS: [Victim; 2] = [
    Victim {
        name: "norm",
        text: include_str!("negative/norm.metal"),
        geometry: Geometry { grid: [2, 1, 1], threads: 128 },
        buffers: norm_buffers,
    },
    Victim {
        name: "product",
        text: include_str!("negative/product.metal"),
        geometry: Geometry { grid: [1, 1, 1], threads: 64 },
        buffers: product_buffers,
    },
];

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Bytes of bfloat16 values that it holds exactly.
fn bfloats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// Rows of 2 and of -4: normalised they are 1 and -1.
fn norm_buffers() -> Vec<Contents> {
    let rows = |a: f32, b: f32| std::iter::repeat_n(a, 512).chain(std::iter::repeat_n(b, 512));
    let x = words(rows(2.0, -4.0).map(f32::to_bits));
    let y = (vec![0xff; 2048], bfloats(rows(1.0, -1.0)));
    vec![(x.clone(), x), y, (words([0]), words([256]))]
}

/// Small integers: every sum is exact.
fn product_buffers() -> Vec<Contents> {
    let a = |row: usize, k: usize| ((row * 3 + k) % 5) as f32 - 2.0;
    let b = |column: usize, k: usize| ((column + 2 * k) % 7) as f32 - 3.0;
    let matrix = |rows: usize, at: &dyn Fn(usize, usize) -> f32| {
        bfloats((0..rows * 32).map(|i| at(i / 32, i % 32)))
    };
    let sum =
        |row: usize, column: usize| -> f32 { (0..32).map(|k| a(row, k) * b(column, k)).sum() };
    let c = words((0..128).map(|i| sum(i / 8, i % 8).to_bits()));
    let (a, b) = (matrix(16, &a), matrix(8, &b));
    vec![(a.clone(), a), (b.clone(), b), (vec![0xff; 512], c)]
}

fn source(victim: &Victim, text: &str) -> Source {
    let args = "struct Args { uint parts; float eps; };\n";
    let start = format!("#include <metal_stdlib>\nusing namespace metal;\n{args}");
    let text = format!("{start}#line 1 \"{}.metal\"\n{text}", victim.name);
    Source::metal(text, victim.name)
}

/// Compiles and runs a text; the error is what a user reads.
fn run(victim: &Victim, text: &str, build: Build, order: Order) -> Result<(), String> {
    let kernel = compile(&source(victim, text), build).map_err(|e| e.to_string())?;
    let contents = [(words([4, 0]), words([4, 0]))].into_iter().chain((victim.buffers)());
    let mut blocks = Vec::new();
    for (before, after) in contents {
        let mut block = Block::new(before.len()).map_err(|e| e.to_string())?.ok_or("no memory")?;
        assert!(block.write(0, &before));
        blocks.push((block, after));
    }
    let bindings: Vec<_> = blocks.iter().map(|(block, _)| block.binding()).collect();
    kernel.run(victim.geometry, &bindings, order, 1).map_err(|e| e.to_string())?;
    for (index, (block, after)) in blocks.iter().enumerate() {
        let mut found = vec![0; after.len()];
        assert!(block.read(0, &mut found));
        if found != *after {
            return Err(format!("{}.metal: wrong result in buffer({index})", victim.name));
        }
    }
    Ok(())
}

const BUILDS: [Build; 2] = [Build::Fast, Build::Checked];
const ORDERS: [Order; 2] = [Order::Forward, Order::Reverse];

#[test]
fn the_texts_without_faults_pass() {
    for victim in &VICTIMS {
        for build in BUILDS {
            for order in ORDERS {
                let result = run(victim, victim.text, build, order);
                assert_eq!(result, Ok(()), "{} {build:?} {order:?}", victim.name);
            }
        }
    }
}

/// What is wrong with how a fault was found; nothing if it was found as it should be.
fn examine(fault: &Fault) -> Result<(), String> {
    let victim = VICTIMS.iter().find(|v| v.name == fault.victim).ok_or("no such text")?;
    if victim.text.matches(fault.old).count() != 1 {
        return Err(format!("`{}` is not in the text once", fault.old));
    }
    let text = victim.text.replace(fault.old, fault.new);
    let source = source(victim, &text);
    let message = match fault.found {
        Found::ByTranslator => match translate(&source, Dialect::Cpu) {
            Ok(_) => return Err("the translator takes it".into()),
            Err(error) => error.to_string(),
        },
        Found::ByCompiler => match compile(&source, Build::Fast) {
            Ok(_) => return Err("the compiler takes it".into()),
            Err(CompileError::Text(message)) => message,
            Err(error) => return Err(format!("another stage finds it: {error}")),
        },
        Found::Running(build, order) => match run(victim, &text, build, order) {
            Ok(()) => return Err("the launch succeeds".into()),
            Err(message) => message,
        },
    };
    if !message.contains(fault.message) {
        return Err(format!("found as: {message}\nneed: {}", fault.message));
    }
    if fault.at.is_empty() {
        return Ok(());
    }
    let line = text.lines().position(|line| line.contains(fault.at)).ok_or("no place")? + 1;
    let place = format!("{}.metal:{line}:", fault.victim);
    if !message.contains(&place) {
        return Err(format!("found as: {message}\nneed the place {place}"));
    }
    Ok(())
}

#[test]
fn every_planted_fault_is_found_with_file_and_line() {
    let named = FAULTS.iter().filter(|fault| !fault.at.is_empty()).count();
    assert!(named >= 30, "only {named} faults are found with their place");
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some(fault) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(reason) = examine(fault) {
                missed.lock().expect("no thread panics").push(format!("{}: {reason}", fault.what));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let missed = missed.into_inner().expect("no thread panics");
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), FAULTS.len(), missed.join("\n"));
}
