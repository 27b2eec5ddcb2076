//! Claims about several Gated DeltaNet kernels together, for any device.

use std::sync::Arc;

use lily_plan::{
    BufferId, BufferKind, Buffers, Device, DeviceError, Element, Launch, Plan, PlanId, Precision,
    Step, Weight, Weights, control, read_f32, write_f32, write_i32,
};

use super::GdnArgs;
use crate::conformance::small_shapes;
use crate::math::rms_scale;
use crate::shape::{CHUNK, CHUNKED_FROM_TOKENS, LaunchContext, ModelShape, SessionShape};
use crate::{gdn_chunk_prepare, gdn_chunk_scan, gdn_conv, gdn_gate, gdn_scan, gdn_step};

/// Largest relative rms difference between two ways to the same numbers, all in f32: a few hundred
/// roundings of 6e-8.
const SAME: f64 = 5e-6;
/// The same for outputs in bfloat16, which decode rounds before the division by their rms and prefill
/// after it: two roundings of up to 2e-3.
const SAME_BF16: f64 = 4e-3;

/// Chunks leave the states, the convolution columns and the outputs of as many decode steps. Every
/// split starts at position 0 with not a number in both rings.
pub fn prefill_agrees_with_decode(device: &mut dyn Device) -> Result<(), DeviceError> {
    for shape in small_shapes() {
        for chunks in [&[1, 1, 1][..], &[2, 1, 2], &[7, 5], &[33, 7, 2], &[70, 40, 64]] {
            let tokens = chunks.iter().sum();
            let mut stepped = Layer::new(device, &shape, tokens)?;
            let want: Vec<Vec<f32>> =
                (0..tokens).map(|t| stepped.decode(t)).collect::<Result<_, _>>()?;
            let (want_state, want_ring) = (stepped.state(tokens)?, stepped.columns(tokens)?);
            let before = stepped.state(tokens - 1)?;
            let mut chunked = Layer::new(device, &shape, tokens)?;
            let mut got = Vec::new();
            for &n in chunks {
                got.extend(chunked.prefill(got.len(), n)?);
            }
            let label = format!("hidden {}, chunks {chunks:?}", shape.hidden);
            let act = chunked.session.act();
            let allowed = if act == Element::Bf16 { SAME_BF16 } else { SAME };
            assert_within(allowed, &format!("{label}: outputs"), &want.concat(), &got.concat());
            assert_same(&format!("{label}: state"), &want_state, &chunked.state(tokens)?);
            assert_eq!(want_ring, chunked.columns(tokens)?, "{label}: convolution columns");
            if chunks.last() == Some(&2) {
                // Short enough to be taken back: the state before the last token is there too.
                assert_same(&format!("{label}: one back"), &before, &chunked.state(tokens - 1)?);
            }
        }
    }
    Ok(())
}

/// 200 tokens in chunks agree with the recurrence in f64, from a state that is not zero.
pub fn chunk_form_agrees_with_the_recurrence(device: &mut dyn Device) -> Result<(), DeviceError> {
    const TOKENS: usize = 200;
    const START: usize = 61;
    for shape in small_shapes() {
        let (k_heads, k_dim) = (shape.k_heads, shape.k_dim);
        let (v_heads, v_dim) = (shape.v_heads, shape.v_dim);
        let mut layer = Layer::new(device, &shape, TOKENS)?;
        let unit = |seed: u64| {
            let mut x = noise(seed, TOKENS * k_heads * k_dim);
            for head in x.chunks_mut(k_dim) {
                let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= length);
            }
            x
        };
        let (q, k, v) = (unit(1), unit(2), noise(3, TOKENS * v_heads * v_dim));
        let gate = |seed: u64| noise(seed, TOKENS * v_heads).into_iter();
        let beta: Vec<f32> = gate(4).map(super::beta).collect();
        // Mostly slow decay, and now and then an abrupt one far below -10.
        let decay = |x: f32| if x > 2.0 { -15.0 * x } else { -0.05 * x.abs() };
        let decays: Vec<f32> = gate(5).map(decay).collect();
        let state = noise(6, v_heads * v_dim * k_dim);
        let ids = layer.ids;
        let inputs =
            [(ids.gq, &q), (ids.gk, &k), (ids.gv, &v), (ids.beta, &beta), (ids.log_decay, &decays)];
        for (buffer, values) in inputs {
            write_f32(layer.device, buffer, 0, values)?;
        }
        // What the device holds of them: rounded, where act is.
        let mut held = |buffer, values: &[f32]| read_f32(layer.device, buffer, 0, values.len());
        let (q, k, v) = (held(ids.gq, &q)?, held(ids.gk, &k)?, held(ids.gv, &v)?);
        write_f32(layer.device, ids.state, layer.dims.state(0, START, 0).start, &state)?;
        let qkv = layer.qkv.clone();
        write_f32(layer.device, ids.qkv, 0, &qkv)?;
        layer.set_control(START, TOKENS)?;
        let step = Step::Prefill { tokens: TOKENS, sequence: 0 };
        layer.run(step, |cx| vec![chunk_prepare(cx, ids), chunk_scan(cx, ids)])?;
        let core = read_f32(layer.device, ids.core, 0, TOKENS * v_heads * v_dim)?;
        let left = layer.state(START + TOKENS)?;

        let mut state: Vec<f64> = state.iter().map(|&s| f64::from(s)).collect();
        let mut want = Vec::new();
        for t in 0..TOKENS {
            for h in 0..v_heads {
                let key = (t * k_heads + layer.dims.key_head(h)) * k_dim;
                let head = t * v_heads + h;
                want.extend(recurrence(
                    &mut state[h * v_dim * k_dim..(h + 1) * v_dim * k_dim],
                    (&q[key..key + k_dim], &k[key..key + k_dim]),
                    &v[head * v_dim..(head + 1) * v_dim],
                    (decays[head], beta[head]),
                ));
            }
        }
        let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        assert_same("core", &narrow(&want), &core);
        assert_same("state", &narrow(&state), &left);
    }
    Ok(())
}

/// One token of one head in f64.
fn recurrence(
    state: &mut [f64],
    (q, k): (&[f32], &[f32]),
    v: &[f32],
    (log_decay, beta): (f32, f32),
) -> Vec<f64> {
    let alpha = f64::from(log_decay).exp();
    let dot = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
    let row = |(state, v): (&mut [f64], &f32)| {
        state.iter_mut().for_each(|s| *s *= alpha);
        let r = f64::from(beta) * (f64::from(*v) - dot(state, k));
        state.iter_mut().zip(k).for_each(|(s, &k)| *s += r * f64::from(k));
        dot(state, q)
    };
    state.chunks_mut(k.len()).zip(v).map(row).collect()
}

fn assert_same(what: &str, want: &[f32], got: &[f32]) {
    assert_within(SAME, what, want, got);
}

fn assert_within(allowed: f64, what: &str, want: &[f32], got: &[f32]) {
    assert_eq!(want.len(), got.len(), "{what}");
    let difference = relative(want.iter().map(|&x| f64::from(x)), got);
    assert!(difference <= allowed, "{what}: relative rms {difference:.2e}, allowed {allowed:.0e}");
}

/// Relative rms difference; not a number if either side is.
fn relative(want: impl Iterator<Item = f64>, got: &[f32]) -> f64 {
    let (mut error, mut size) = (0.0, 0.0);
    for (want, &got) in want.zip(got) {
        error += (f64::from(got) - want).powi(2);
        size += want.powi(2);
    }
    (error / size).sqrt()
}

/// `n` values of mean 0 and standard deviation 1.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// The buffers of one layer.
#[derive(Clone, Copy)]
struct Ids {
    control: BufferId,
    qkv: BufferId,
    conv: BufferId,
    state: BufferId,
    z: BufferId,
    ba: BufferId,
    conv1d: BufferId,
    a_log: BufferId,
    dt_bias: BufferId,
    norm: BufferId,
    og: BufferId,
    o_ss: BufferId,
    gq: BufferId,
    gk: BufferId,
    gv: BufferId,
    beta: BufferId,
    log_decay: BufferId,
    chunk_u: BufferId,
    chunk_w: BufferId,
    chunk_g: BufferId,
    chunk_p: BufferId,
    core: BufferId,
}

/// One layer between its projections, for one sequence of `tokens` tokens.
struct Layer<'a> {
    device: &'a mut dyn Device,
    shape: &'a ModelShape,
    session: SessionShape,
    dims: GdnArgs,
    buffers: Arc<Buffers>,
    ids: Ids,
    qkv: Vec<f32>,
    z: Vec<f32>,
    ba: Vec<f32>,
    plans: Vec<(Step, PlanId)>,
}

impl<'a> Layer<'a> {
    fn new(
        device: &'a mut dyn Device,
        shape: &'a ModelShape,
        tokens: usize,
    ) -> Result<Self, DeviceError> {
        let session = SessionShape {
            batch: 1,
            tokens,
            capacity: 512,
            run_ahead: 2,
            splits: 1,
            ring: 8,
            logit_rows: 1,
            precision: device.precision(),
        };
        let step = Step::Decode { batch: 1 };
        let dims = GdnArgs::new(&context(shape, &session, step));
        let mut buffers = Buffers::new();
        let mut weights = Weights::new();
        let channels = shape.conv_channels();
        let mut vector = |buffers: &mut Buffers, name: &str, shape: &[usize], values: Vec<f32>| {
            weights.insert(name.into(), Weight::Vector(values));
            buffers.add(BufferKind::Weight, name, Element::F32, shape)
        };
        let scaled = |seed: u64, n: usize, mean: f32, deviation: f32| -> Vec<f32> {
            noise(seed, n).into_iter().map(|x| mean + deviation * x).collect()
        };
        let width = shape.conv_width;
        let taps = scaled(11, channels * width, 0.0, 0.5);
        let conv1d = vector(&mut buffers, "conv1d", &[channels, width], taps);
        let a_log = scaled(12, shape.v_heads, -1.0, 1.0);
        let a_log = vector(&mut buffers, "a_log", &[shape.v_heads], a_log);
        let dt_bias = scaled(13, shape.v_heads, -1.0, 1.0);
        let dt_bias = vector(&mut buffers, "dt_bias", &[shape.v_heads], dt_bias);
        let norm = scaled(14, shape.v_dim, 1.0, 0.2);
        let norm = vector(&mut buffers, "norm", &[shape.v_dim], norm);
        let Precision { act, chunk, .. } = session.precision;
        let mut add = |name: &str, element: Element, shape: &[usize]| {
            buffers.add(BufferKind::Scratch, name, element, shape)
        };
        let (v_heads, v_dim, k_dim) = (shape.v_heads, shape.v_dim, shape.k_dim);
        let (keys, values) = ([tokens, shape.k_heads, k_dim], [tokens, v_heads, v_dim]);
        let state = [1, session.state_slots(), v_heads, v_dim, k_dim];
        let ids = Ids {
            control: add("control", Element::I32, &[1, control::WORDS]),
            qkv: add("qkv", Element::F32, &[tokens, channels]),
            conv: add("conv", Element::F32, &[1, session.conv_slots(shape), channels]),
            state: add("state", Element::F32, &state),
            z: add("z", act, &[tokens, shape.v_width()]),
            ba: add("ba", Element::F32, &[tokens, 2 * v_heads]),
            conv1d,
            a_log,
            dt_bias,
            norm,
            og: add("og", act, &[tokens, shape.v_width()]),
            o_ss: add("o_ss", Element::F32, &[1, v_heads, shape.o_ss_slices()]),
            gq: add("gq", act, &keys),
            gk: add("gk", act, &keys),
            gv: add("gv", act, &values),
            beta: add("beta", Element::F32, &[tokens, v_heads]),
            log_decay: add("log_decay", Element::F32, &[tokens, v_heads]),
            chunk_u: add("chunk_u", chunk, &values),
            chunk_w: add("chunk_w", chunk, &[tokens, v_heads, k_dim]),
            chunk_g: add("chunk_g", Element::F32, &[tokens, v_heads]),
            chunk_p: add("chunk_p", chunk, &[tokens, v_heads, CHUNK]),
            core: add("core", Element::F32, &values),
        };
        let buffers = Arc::new(buffers);
        device.allocate(&buffers, weights)?;
        for id in [ids.conv, ids.state] {
            write_f32(device, id, 0, &vec![f32::NAN; buffers.get(id).elements()])?;
        }
        Ok(Self {
            device,
            shape,
            session,
            dims,
            buffers,
            ids,
            qkv: noise(21, tokens * channels),
            z: noise(22, tokens * shape.v_width()),
            ba: noise(23, tokens * 2 * v_heads),
            plans: Vec::new(),
        })
    }

    /// Runs the plan of a step, compiling it when it is new.
    fn run(
        &mut self,
        step: Step,
        launches: impl FnOnce(&LaunchContext<'_>) -> Vec<Launch>,
    ) -> Result<(), DeviceError> {
        let known = self.plans.iter().find(|(known, _)| *known == step).map(|&(_, plan)| plan);
        let plan = match known {
            Some(plan) => plan,
            None => {
                let launches = launches(&context(self.shape, &self.session, step));
                let plan = Plan::new(step, self.buffers.clone(), launches)
                    .map_err(|e| DeviceError::Usage(e.to_string()))?;
                let plan = self.device.compile(&Arc::new(plan))?;
                self.plans.push((step, plan));
                plan
            }
        };
        self.device.submit(plan)?;
        self.device.wait()
    }

    fn set_control(&mut self, position: usize, count: usize) -> Result<(), DeviceError> {
        let mut row = [0; control::WORDS];
        (row[control::POSITION], row[control::COUNT]) = (position as i32, count as i32);
        write_i32(self.device, self.ids.control, 0, &row)
    }

    /// One decode step; returns the output after its norm, `[v_width]`.
    fn decode(&mut self, t: usize) -> Result<Vec<f32>, DeviceError> {
        let (ids, shape) = (self.ids, self.shape);
        let (channels, v_width, gates) =
            (shape.conv_channels(), shape.v_width(), 2 * shape.v_heads);
        let column = &self.qkv[t * channels..(t + 1) * channels];
        write_f32(self.device, ids.conv, self.dims.column(0, t), column)?;
        write_f32(self.device, ids.z, 0, &self.z[t * v_width..(t + 1) * v_width])?;
        write_f32(self.device, ids.ba, 0, &self.ba[t * gates..(t + 1) * gates])?;
        self.set_control(t, 0)?;
        self.run(Step::Decode { batch: 1 }, |cx| vec![step(cx, ids)])?;
        let mut og = read_f32(self.device, ids.og, 0, v_width)?;
        let slices = shape.o_ss_slices();
        let o_ss = read_f32(self.device, ids.o_ss, 0, shape.v_heads * slices)?;
        for (og, ss) in og.chunks_mut(shape.v_dim).zip(o_ss.chunks(slices)) {
            let scale = rms_scale(ss.iter().sum(), shape.v_dim, shape.rms_eps);
            og.iter_mut().for_each(|og| *og *= scale);
        }
        Ok(og)
    }

    /// A chunk of `n` tokens from token `first` on; returns their outputs.
    fn prefill(&mut self, first: usize, n: usize) -> Result<Vec<Vec<f32>>, DeviceError> {
        let (ids, shape) = (self.ids, self.shape);
        let (channels, v_width, gates) =
            (shape.conv_channels(), shape.v_width(), 2 * shape.v_heads);
        let rows = |width: usize| first * width..(first + n) * width;
        write_f32(self.device, ids.qkv, 0, &self.qkv[rows(channels)])?;
        write_f32(self.device, ids.z, 0, &self.z[rows(v_width)])?;
        write_f32(self.device, ids.ba, 0, &self.ba[rows(gates)])?;
        self.set_control(first, n)?;
        self.run(Step::Prefill { tokens: n, sequence: 0 }, |cx| {
            let mut launches = vec![conv(cx, ids)];
            if n < CHUNKED_FROM_TOKENS {
                launches.push(scan(cx, ids));
            } else {
                launches.extend([chunk_prepare(cx, ids), chunk_scan(cx, ids)]);
            }
            launches.push(gate(cx, ids));
            launches
        })?;
        let og = read_f32(self.device, ids.og, 0, n * v_width)?;
        Ok(og.chunks(v_width).map(<[f32]>::to_vec).collect())
    }

    /// The state before `position`, all heads.
    fn state(&mut self, position: usize) -> Result<Vec<f32>, DeviceError> {
        let first = self.dims.state(0, position, 0).start;
        let elements = self.shape.v_width() * self.shape.k_dim;
        read_f32(self.device, self.ids.state, first, elements)
    }

    /// The convolution columns that the token at `position` needs, the oldest first.
    fn columns(&mut self, position: usize) -> Result<Vec<Vec<f32>>, DeviceError> {
        let window = position.saturating_sub(self.shape.conv_width - 1)..position;
        let (ring, channels) = (self.ids.conv, self.shape.conv_channels());
        window.map(|p| read_f32(self.device, ring, self.dims.column(0, p), channels)).collect()
    }
}

fn context<'a>(shape: &'a ModelShape, session: &'a SessionShape, step: Step) -> LaunchContext<'a> {
    LaunchContext { shape, session, step, layer: None, splits: session.splits }
}

fn step(cx: &LaunchContext<'_>, ids: Ids) -> Launch {
    let Ids { control, conv, z, ba, conv1d, a_log, dt_bias, norm, state, og, o_ss, .. } = ids;
    let buffers =
        gdn_step::Buffers { control, conv, z, ba, conv1d, a_log, dt_bias, norm, state, og, o_ss };
    gdn_step::launch(cx, buffers)
}

fn conv(cx: &LaunchContext<'_>, ids: Ids) -> Launch {
    let Ids { control, qkv, conv, ba, conv1d, a_log, dt_bias, gq, gk, gv, .. } = ids;
    let buffers = gdn_conv::Buffers {
        control,
        qkv,
        conv,
        ba,
        conv1d,
        a_log,
        dt_bias,
        gq,
        gk,
        gv,
        beta: ids.beta,
        log_decay: ids.log_decay,
    };
    gdn_conv::launch(cx, buffers)
}

fn scan(cx: &LaunchContext<'_>, ids: Ids) -> Launch {
    let Ids { control, gq, gk, gv, beta, log_decay, qkv, state, core, conv, .. } = ids;
    let buffers =
        gdn_scan::Buffers { control, gq, gk, gv, beta, log_decay, qkv, state, core, conv };
    gdn_scan::launch(cx, buffers)
}

fn chunk_prepare(cx: &LaunchContext<'_>, ids: Ids) -> Launch {
    let Ids { control, gq, gk, gv, beta, log_decay, chunk_u, chunk_w, chunk_g, chunk_p, .. } = ids;
    let buffers = gdn_chunk_prepare::Buffers {
        control,
        gq,
        gk,
        gv,
        beta,
        log_decay,
        chunk_u,
        chunk_w,
        chunk_g,
        chunk_p,
    };
    gdn_chunk_prepare::launch(cx, buffers)
}

fn chunk_scan(cx: &LaunchContext<'_>, ids: Ids) -> Launch {
    let Ids { control, gq, gk, chunk_u, chunk_w, chunk_g, chunk_p, .. } = ids;
    let buffers = gdn_chunk_scan::Buffers {
        control,
        gq,
        gk,
        chunk_u,
        chunk_w,
        chunk_g,
        chunk_p,
        qkv: ids.qkv,
        state: ids.state,
        core: ids.core,
        conv: ids.conv,
    };
    gdn_chunk_scan::launch(cx, buffers)
}

fn gate(cx: &LaunchContext<'_>, ids: Ids) -> Launch {
    let Ids { control, core, z, norm, og, .. } = ids;
    gdn_gate::launch(cx, gdn_gate::Buffers { control, core, z, norm, og })
}

#[cfg(test)]
mod tests {
    use lily_plan::{Interpreter, Precision};

    use super::*;
    use crate::cpu::delta::{DeltaToken, delta_rows};
    use crate::table;

    fn reference() -> Interpreter {
        Interpreter::new(table::reference, Precision::EXACT, true)
    }

    #[test]
    #[cfg_attr(miri, ignore = "millions of plain f64 operations")]
    fn prefill_agrees_with_decode_in_the_reference() -> Result<(), DeviceError> {
        prefill_agrees_with_decode(&mut reference())
    }

    #[test]
    #[cfg_attr(miri, ignore = "millions of plain f64 operations")]
    fn chunk_form_agrees_with_the_recurrence_in_the_reference() -> Result<(), DeviceError> {
        chunk_form_agrees_with_the_recurrence(&mut reference())
    }

    /// A state rounded to 16 bits would be off by 1e-3 after the first step.
    #[test]
    #[cfg_attr(miri, ignore = "millions of plain f64 operations")]
    fn the_state_stays_within_its_bound_over_4000_steps() {
        const STEPS: usize = 4000;
        const BOUND: f64 = 2e-6;
        let (k_dim, v_dim) = (128, 32);
        let start = noise(1, v_dim * k_dim);
        let mut exact: Vec<f64> = start.iter().map(|&s| f64::from(s)).collect();
        let (mut plain, mut fast) = (start.clone(), start);
        let gates = noise(2, 2 * STEPS);
        let simd = crate::cpu::Simd::detect();
        for t in 0..STEPS {
            let seed = 3 * t as u64;
            let unit = |seed: u64| {
                let x = noise(seed, k_dim);
                let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                x.iter().map(|x| x / length).collect::<Vec<f32>>()
            };
            let (q, k, v) = (unit(seed + 10), unit(seed + 11), noise(seed + 12, v_dim));
            let beta = crate::gdn::beta(gates[2 * t]);
            let decay = -0.01 * gates[2 * t + 1].abs();
            let want = recurrence(&mut exact, (&q, &k), &v, (decay, beta));
            let plain_o = crate::gdn::delta_token(&mut plain, &q, &k, &v, decay, beta);
            let mut fast_o = vec![0.0; v_dim];
            let token = DeltaToken::new(simd, &q, &k, decay, beta);
            delta_rows(simd, None, &mut fast, &token, &v, &mut fast_o);
            for (name, got) in [("reference", plain_o), ("vector form", fast_o)] {
                let error = relative(want.iter().copied(), &got);
                assert!(error <= BOUND, "{name}: output {t} is off by {error:.2e}");
            }
        }
        for (name, state) in [("reference", plain), ("vector form", fast)] {
            let error = relative(exact.iter().copied(), &state);
            assert!(error <= BOUND, "{name}: the state is off by {error:.2e}");
        }
    }
}
