use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use lily_plan::{GROUP, MappedFile, RowFormat, RowSegment};

use super::*;

/// Memory in the place of a GPU. A copy is made late: when its stage is wanted again, or at the end; until then the
/// stage must stay as it is.
struct Memory {
    buffers: Vec<Mutex<Vec<u8>>>,
    stages: AtomicUsize,
    copies: AtomicUsize,
    /// The copy that fails.
    fails_at: usize,
}

struct Stage<'a> {
    memory: &'a Memory,
    bytes: Vec<u8>,
    pending: Vec<(usize, Range<usize>, usize)>,
}

impl Stage<'_> {
    fn settle(&mut self) {
        for (buffer, part, to) in self.pending.drain(..) {
            let mut buffer = self.memory.buffers[buffer].lock().expect("no panic");
            let piece = &self.bytes[part];
            buffer[to..to + piece.len()].copy_from_slice(piece);
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

#[derive(Debug)]
struct Failed(String);

impl From<Unreadable> for Failed {
    fn from(error: Unreadable) -> Self {
        Self(error.to_string())
    }
}

impl<'m> Bus for &'m Memory {
    type Stage = Stage<'m>;
    type Error = Failed;

    fn stage(&self, bytes: usize) -> Result<Self::Stage, Failed> {
        self.stages.fetch_add(1, Ordering::Relaxed);
        Ok(Stage { memory: self, bytes: vec![0; bytes], pending: Vec::new() })
    }

    fn contents<'a>(&self, stage: &'a mut Self::Stage) -> Result<&'a mut [u8], Failed> {
        stage.settle();
        Ok(&mut stage.bytes)
    }

    fn copy(
        &self,
        stage: &mut Self::Stage,
        buffer: usize,
        pieces: &[(Range<usize>, usize)],
    ) -> Result<(), Failed> {
        if self.copies.fetch_add(1, Ordering::Relaxed) >= self.fails_at {
            return Err(Failed("the bus is broken".into()));
        }
        stage.pending.extend(pieces.iter().map(|(part, to)| (buffer, part.clone(), *to)));
        Ok(())
    }
}

fn noise(bytes: usize, seed: u32) -> Bytes {
    let byte = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8 & 0x3f;
    (0..bytes as u32).map(byte).collect()
}

fn matrix(experts: usize, rows: usize, k: usize, format: RowFormat, seed: u32) -> WeightMatrix {
    let bytes = |row: usize, seed| noise(experts * rows * row, seed);
    let segment = RowSegment {
        tensor: "t".into(),
        format,
        experts: 0..experts,
        first_row: 0,
        row_step: 1,
        rows,
        source_row: 0,
        expert_stride: rows,
        codes: bytes(format.code_bytes(k), seed),
        scales: bytes(format.scale_bytes(k), seed + 1),
        biases: bytes(format.scale_bytes(k), seed + 2),
    };
    WeightMatrix::new(experts, rows, k, vec![segment]).expect("a whole matrix")
}

/// Some matrices of several parts and of one, with their packed forms.
fn model() -> Vec<(WeightMatrix, MatrixFormat, Vec<u8>)> {
    let matrices = [
        matrix(3, 700, 64 * GROUP, RowFormat::Q4, 1),
        matrix(1, 5, GROUP, RowFormat::Q8, 2),
        matrix(1, 1500, 40 * GROUP, RowFormat::Bf16, 3),
    ];
    let with_format = |matrix: WeightMatrix| {
        let format = MatrixFormat::of(&matrix);
        let packed = format.pack_all(&matrix);
        (matrix, format, packed)
    };
    matrices.into_iter().map(with_format).collect()
}

fn memory(model: &[(WeightMatrix, MatrixFormat, Vec<u8>)], fails_at: usize) -> Memory {
    let buffers = model.iter().map(|(.., packed)| Mutex::new(vec![0xff; packed.len()])).collect();
    Memory { buffers, stages: AtomicUsize::new(0), copies: AtomicUsize::new(0), fails_at }
}

fn uploads(model: &[(WeightMatrix, MatrixFormat, Vec<u8>)]) -> Vec<Upload<'_>> {
    let numbered = model.iter().enumerate();
    let upload =
        numbered.map(|(buffer, (matrix, format, _))| Upload { matrix, format: *format, buffer });
    upload.collect()
}

#[test]
fn every_matrix_arrives_as_it_is_packed_for_any_number_of_threads() {
    let model = model();
    let total: u64 = model.iter().map(|(.., packed)| packed.len() as u64).sum();
    for threads in [0, 1, 2, 5, 99] {
        let memory = memory(&model, usize::MAX);
        let heard = AtomicU64::new(0);
        let watch = |bytes| {
            heard.fetch_max(bytes, Ordering::Relaxed);
        };
        upload(&&memory, &uploads(&model), &WeightFiles::default(), threads, &watch)
            .expect("nothing fails");
        for ((.., packed), got) in model.iter().zip(&memory.buffers) {
            assert!(*got.lock().expect("no panic") == *packed, "{threads} threads");
        }
        assert_eq!(heard.into_inner(), total);
        let copies = memory.copies.into_inner();
        assert!(copies > model.len(), "matrices are cut into parts: {copies} copies");
        let stages = memory.stages.into_inner();
        assert!(stages <= STAGES * threads.clamp(1, MOST_THREADS), "{stages} stages");
    }
}

#[test]
fn a_copy_that_fails_and_a_file_that_is_cut_end_the_upload() {
    let model = model();
    let all = memory(&model, usize::MAX);
    upload(&&all, &uploads(&model), &WeightFiles::default(), 1, &|_| ()).expect("nothing fails");
    for fails_at in [0, 3] {
        let memory = memory(&model, fails_at);
        let result = upload(&&memory, &uploads(&model), &WeightFiles::default(), 1, &|_| ());
        assert_eq!(result.expect_err("a copy fails").0, "the bus is broken");
        let (copies, whole) = (memory.copies.into_inner(), all.copies.load(Ordering::Relaxed));
        assert!(copies < whole, "{copies} of {whole} copies");
    }
    if cfg!(not(unix)) {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let bytes = model[1].0.segments()[0].codes.clone();
    let mapped = MappedFile { path: file.path().into(), bytes };
    let files = WeightFiles::open(vec![mapped], |_| ());
    let result = upload(&&memory(&model, usize::MAX), &uploads(&model), &files, 2, &|_| ());
    let error = result.expect_err("the file is empty").0;
    assert!(error.starts_with("cannot read the weights in "), "{error}");
}

#[test]
fn no_weights_take_no_threads_and_no_stages() {
    let memory = memory(&[], 0);
    upload(&&memory, &[], &WeightFiles::default(), 4, &|_| ()).expect("there is nothing to do");
    assert_eq!(memory.stages.into_inner(), 0);
}
