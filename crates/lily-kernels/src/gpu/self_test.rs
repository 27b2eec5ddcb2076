//! Products of matrix tiles with known results, for a device that cannot be believed without having been asked.

use std::sync::Arc;

use half::bf16;
use lily_plan::{
    BufferId, BufferKind, Buffers, Device, DeviceError, Element, Launch, Plan, RowFormat,
    RowSegment, Step, Weight, WeightMatrix, Weights, control, read_f32, write_f32, write_i32,
};

use crate::shape::{LaunchContext, Mixer, ModelShape, SessionShape};
use crate::{attn_flash, attn_in};

/// Why the products of a device are not trusted.
#[derive(Debug, thiserror::Error)]
pub enum WrongProducts {
    /// It did not run them: a text did not compile, say.
    #[error("the products' self-test did not run: {0}")]
    Device(#[from] DeviceError),
    /// It ran them, and a number is wrong.
    #[error("self-test, {launch}: element {element} is {found}, should be {wanted}")]
    Number {
        /// What was run.
        launch: &'static str,
        /// Index in its output.
        element: usize,
        /// What the device wrote.
        found: f32,
        /// The exact result.
        wanted: f32,
    },
}

/// Asks a device for small matrix products, and compares every element with its exact result: a dense
/// product in tiles of 32 rows and of 64, and attention. `device` runs the form of products that is in question. Its
/// buffers are replaced.
///
/// # Errors
/// [`WrongProducts`] says what is wrong.
pub fn check_products(device: &mut dyn Device) -> Result<(), WrongProducts> {
    let shape = shape();
    for tokens in [SMALL_CHUNK, LARGE_CHUNK] {
        Check::new(&shape, device, tokens).dense()?;
    }
    Check::new(&shape, device, SMALL_CHUNK).attention()
}

/// One tile of 32 rows and a single row behind it.
const SMALL_CHUNK: usize = 33;
/// Enough for tiles of 64 rows.
const LARGE_CHUNK: usize = 128;
/// Position of a chunk's first token.
const POSITION: usize = 61;
/// Absolute; results are whole numbers.
const TOLERANCE: f32 = 0.1;

fn shape() -> ModelShape {
    ModelShape {
        hidden: 64,
        layers: vec![Mixer::Attention],
        vocab: 64,
        vocab_used: 64,
        q_heads: 8,
        kv_heads: 2,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        k_heads: 1,
        v_heads: 1,
        k_dim: 32,
        v_dim: 32,
        conv_width: 4,
        experts: 1,
        top_k: 1,
        inner: 64,
        rms_eps: 0.0,
    }
}

/// A plan of one launch that is being put together.
struct Check<'a> {
    shape: &'a ModelShape,
    session: SessionShape,
    device: &'a mut dyn Device,
    buffers: Buffers,
    weights: Weights,
    contents: Vec<(BufferId, Vec<f32>)>,
}

impl<'a> Check<'a> {
    fn new(shape: &'a ModelShape, device: &'a mut dyn Device, tokens: usize) -> Self {
        let session = SessionShape {
            batch: 1,
            tokens,
            capacity: POSITION + tokens,
            run_ahead: 1,
            splits: 8,
            ring: 8,
            logit_rows: 1,
            precision: device.precision(),
        };
        let (buffers, weights) = (Buffers::new(), Weights::new());
        Self { shape, session, device, buffers, weights, contents: Vec::new() }
    }

    fn step(&self) -> Step {
        Step::Prefill { tokens: self.session.tokens, sequence: 0 }
    }

    fn context(&self) -> LaunchContext<'_> {
        LaunchContext {
            shape: self.shape,
            session: &self.session,
            step: self.step(),
            layer: None,
            splits: self.session.splits,
        }
    }

    fn control(&mut self) -> BufferId {
        let shape = vec![1, control::WORDS];
        self.buffers.add(BufferKind::Scratch, "control", Element::I32, shape)
    }

    fn floats(
        &mut self,
        name: &str,
        element: Element,
        shape: Vec<usize>,
        value: impl Fn(usize) -> f32,
    ) -> BufferId {
        let values = (0..shape.iter().product()).map(value).collect();
        let id = self.buffers.add(BufferKind::Scratch, name, element, shape);
        self.contents.push((id, values));
        id
    }

    /// Runs the launch and compares what it wrote.
    fn run(
        self,
        name: &'static str,
        [control, output]: [BufferId; 2],
        launch: Launch,
        wanted: impl Fn(usize) -> f32,
    ) -> Result<(), WrongProducts> {
        let step = self.step();
        let buffers = Arc::new(self.buffers);
        let plan = Plan::new(step, buffers.clone(), vec![launch]);
        let plan = Arc::new(plan.expect("a single launch with declared ranges is a plan"));
        let device = self.device;
        device.allocate(&buffers, self.weights)?;
        let id = device.compile(&plan)?;
        let mut words = [0; control::WORDS];
        words[control::POSITION] = POSITION as i32;
        words[control::COUNT] = self.session.tokens as i32;
        write_i32(device, control, 0, &words)?;
        for (buffer, values) in &self.contents {
            write_f32(device, *buffer, 0, values)?;
        }
        device.submit(id)?;
        device.wait()?;
        let found = read_f32(device, output, 0, buffers.get(output).elements())?;
        for (element, found) in found.into_iter().enumerate() {
            let wanted = wanted(element);
            // A NaN is not within the tolerance.
            let right = (found - wanted).abs() <= TOLERANCE;
            if !right {
                return Err(WrongProducts::Number { launch: name, element, found, wanted });
            }
        }
        Ok(())
    }

    /// Small whole numbers times small whole numbers.
    fn dense(mut self) -> Result<(), WrongProducts> {
        let (q_heads, head_dim, k) = (self.shape.q_heads, self.shape.head_dim, self.shape.hidden);
        let (launch, buffers) = self.dense_launch();
        self.run("a dense product", buffers, launch, |element| {
            let (token, head) = (element / head_dim / q_heads, element / head_dim % q_heads);
            // Rows of queries and of gates alternate by head.
            let row = 2 * head * head_dim + element % head_dim;
            (0..k).map(|i| input(token * k + i) * weight(row * k + i)).sum()
        })
    }

    /// The launch, with its control block and its output.
    fn dense_launch(&mut self) -> (Launch, [BufferId; 2]) {
        let (tokens, k, rows) = (self.session.tokens, self.shape.hidden, self.shape.attn_rows());
        let (q_heads, kv_heads) = (self.shape.q_heads, self.shape.kv_heads);
        let (head_dim, act) = (self.shape.head_dim, self.session.precision.act);
        let codes: Vec<u8> =
            (0..rows * k).flat_map(|i| bf16::from_f32(weight(i)).to_le_bytes()).collect();
        let segment = RowSegment::whole(
            "weight",
            RowFormat::Bf16,
            rows,
            codes.into(),
            Vec::new().into(),
            Vec::new().into(),
        );
        let matrix = WeightMatrix::new(1, rows, k, vec![segment]).expect("one segment is all rows");
        let element = Element::Matrix { total_bytes: matrix.total_bytes() };
        self.weights.insert("weight".into(), Weight::Matrix(matrix));
        let buffers = attn_in::Buffers {
            control: self.control(),
            xn: self.floats("xn", act, vec![tokens, k], input),
            // Mean square 1, so that the norm scales by 1, however many of the partial sums a step has.
            x_ss: self.floats("x_ss", Element::F32, vec![tokens, k / 8], |i| match i % (k / 8) {
                0 => k as f32,
                _ => 0.0,
            }),
            weight: self.buffers.add(BufferKind::Weight, "weight", element, vec![rows, k]),
            aq: self.floats("aq", Element::F32, vec![tokens, q_heads, head_dim], |_| 0.0),
            gate: self.floats("gate", act, vec![tokens, q_heads, head_dim], |_| 0.0),
            ak: self.floats("ak", Element::F32, vec![tokens, kv_heads, head_dim], |_| 0.0),
            av: self.floats("av", Element::F32, vec![tokens, kv_heads, head_dim], |_| 0.0),
        };
        let ends = [buffers.control, buffers.aq];
        (attn_in::launch(&self.context(), buffers), ends)
    }

    /// Every query finds one of the keys, and takes its value: the others weigh less than 1e-5 together.
    fn attention(mut self) -> Result<(), WrongProducts> {
        let (tokens, capacity) = (self.session.tokens, self.session.capacity);
        let (q_heads, kv_heads) = (self.shape.q_heads, self.shape.kv_heads);
        let (dim, group) = (self.shape.head_dim, self.shape.group());
        let precision = self.session.precision;
        let target = move |row: usize| {
            let (token, head) = (row / q_heads, row % q_heads);
            (37 * token + 11 * head) % (POSITION + token + 1)
        };
        let query = move |i: usize| if i % dim == column(target(i / dim)) { 16.0 } else { 0.0 };
        let key = move |i: usize| if i % dim == column(i / dim % capacity) { 16.0 } else { 0.0 };
        let buffers = attn_flash::Buffers {
            control: self.control(),
            q: self.floats("q", precision.act, vec![tokens, q_heads, dim], query),
            // Open: the sigmoid of this is 1.
            gate: self.floats("gate", precision.act, vec![tokens, q_heads, dim], |_| 30.0),
            k: self.floats("k", precision.kv, vec![1, kv_heads, capacity, dim], key),
            v: self.floats("v", precision.kv, vec![1, kv_heads, capacity, dim], weight),
            att: self.floats("att", precision.act, vec![tokens, q_heads * dim], |_| 0.0),
        };
        let ends = [buffers.control, buffers.att];
        let launch = attn_flash::launch(&self.context(), buffers);
        self.run("attention", ends, launch, |element| {
            let row = element / dim;
            let kv_head = row % q_heads / group;
            weight((kv_head * capacity + target(row)) * dim + element % dim)
        })
    }
}

/// Whole numbers from -2 to 2 without a pattern that a wrong layout keeps.
fn input(i: usize) -> f32 {
    (scatter(i, 0x2545_f491) % 5) as f32 - 2.0
}

/// Whole numbers from -3 to 3.
fn weight(i: usize) -> f32 {
    (scatter(i, 0x9e37_79b1) % 7) as f32 - 3.0
}

fn scatter(i: usize, factor: u32) -> u32 {
    let mixed = (i as u32 + 1).wrapping_mul(factor);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b) >> 16
}

/// The only column of a key that is not zero; another one for each of 256 positions.
fn column(position: usize) -> usize {
    position * 5 % 256
}

#[cfg(test)]
mod tests {
    use lily_plan::{Interpreter, Precision};

    use super::*;
    use crate::gpu::{Family, MatrixFormat, Products, Target};
    use crate::table;

    #[test]
    fn the_references_give_the_exact_results() {
        for precision in [Precision::EXACT, Precision::BF16] {
            let mut device = Interpreter::new(table::reference, precision, true);
            check_products(&mut device).unwrap_or_else(|e| panic!("{precision:?}: {e}"));
        }
    }

    #[test]
    fn a_wrong_product_and_a_missing_kernel_are_told() {
        let idle = |name: &str| match name {
            "attn_flash" => Some((|_| {}) as lily_plan::ReferenceFn),
            name => table::reference(name),
        };
        let mut device = Interpreter::new(idle, Precision::BF16, false);
        let error = check_products(&mut device).unwrap_err();
        assert!(matches!(error, WrongProducts::Number { launch: "attention", .. }), "{error}");
        let without = |name: &str| match name {
            "attn_in" => None,
            name => table::reference(name),
        };
        let mut device = Interpreter::new(without, Precision::BF16, false);
        let error = check_products(&mut device).unwrap_err();
        assert!(matches!(error, WrongProducts::Device(_)), "{error}");
        assert!(error.to_string().contains("attn_in"), "{error}");
    }

    #[test]
    fn the_launches_cover_every_height_of_tile_that_apples_policy_takes() {
        let target = Target { family: Family::Apple, products: Products::TensorOperations };
        let shape = shape();
        let mut device = Interpreter::new(table::reference, Precision::BF16, false);
        let mut heights = Vec::new();
        for tokens in [SMALL_CHUNK, LARGE_CHUNK] {
            let (launch, _) = Check::new(&shape, &mut device, tokens).dense_launch();
            let formats = [None, None, None, Some(MatrixFormat::Bf16), None, None, None, None];
            let (_, entry) = target.entry(&launch, 0, &formats).expect("an entry");
            let constant = |name| entry.constants.iter().find(|(n, _)| *n == name);
            assert!(constant("TENSOR_OPERATIONS").is_some_and(|(_, value)| value == "1"));
            heights.extend(constant("TILE_ROWS").map(|(_, value)| value.clone()));
        }
        assert_eq!(heights, ["32", "64"]);
    }
}
