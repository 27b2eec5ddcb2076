use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use lily_kernels::gpu::stored::WeightFiles;
use lily_plan::{MappedFile, RowFormat, RowSegment};

use super::*;

/// Bytes as of a mapped file.
fn noise(bytes: usize) -> Bytes {
    (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect()
}

/// Two matrices of slices of one file, one of which shares its codes with the other, and a vector.
fn weights(file: &Bytes) -> Weights {
    let rows = 300;
    let (codes, scales) = (rows * 128 * 32, rows * 128 * 2);
    let first = RowSegment::whole(
        "t",
        RowFormat::Q4,
        rows,
        file.slice(9..9 + codes),
        file.slice(9 + codes..9 + codes + scales),
        file.slice(9 + codes + scales..9 + codes + 2 * scales),
    );
    let second = RowSegment { scales: noise(scales), ..first.clone() };
    let matrix = |segment| WeightMatrix::new(1, rows, 128 * 64, vec![segment]).unwrap();
    [
        ("a".to_string(), Weight::Matrix(matrix(first))),
        ("b".to_string(), Weight::Matrix(matrix(second))),
        ("c".to_string(), Weight::Vector(vec![1.0, 2.0])),
    ]
    .into()
}

fn rows(weights: &Weights) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for weight in weights.values() {
        match weight {
            Weight::Vector(values) => all.push(values.iter().map(|&v| v as u8).collect()),
            Weight::Matrix(matrix) => {
                for row in (0..matrix.rows()).map(|row| matrix.row(0, row)) {
                    all.push([row.codes, row.scales, row.biases].concat());
                }
            }
        }
    }
    all
}

#[test]
fn weights_are_read_from_their_files_once_each_by_any_number_of_threads() {
    let mapped = noise(3 << 20);
    // Other bytes than the mapping is said to hold: what arrives shows where it was read.
    let stored: Bytes = mapped.iter().map(|b| b ^ 0x15).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&stored).unwrap();
    let mapped_file = MappedFile { path: file.path().into(), bytes: mapped.clone() };
    let files = WeightFiles::open(vec![mapped_file], |_| ());
    let mut expected = weights(&stored);
    let Some(Weight::Matrix(second)) = expected.get_mut("b") else { panic!("a matrix") };
    assert_eq!(second.segments().len(), 1);
    for threads in [1, 3, 99] {
        let weights = weights(&mapped);
        let bytes = copied_bytes(&weights);
        let (heard, of) = (AtomicU64::new(0), AtomicU64::new(0));
        let watch = |done, total| {
            heard.fetch_max(done, Ordering::Relaxed);
            of.store(total, Ordering::Relaxed);
        };
        let copied = copy(weights, &files, threads, &watch).unwrap();
        assert!(rows(&copied) == rows(&expected), "{threads} threads");
        let total = of.into_inner();
        assert_eq!(heard.into_inner(), total);
        assert!(total <= bytes && bytes < total + 64 * 4, "{total} bytes, {bytes} announced");
        // The codes of both matrices are one tensor, and lie in memory once.
        let codes = |name: &str| match &copied[name] {
            Weight::Matrix(matrix) => matrix.segments()[0].codes.as_ptr() as usize,
            Weight::Vector(_) => panic!("a matrix"),
        };
        assert_eq!(codes("a"), codes("b"));
        assert_eq!(codes("a") % 64, 0);
    }
}

#[test]
fn bytes_without_a_file_are_copied_and_no_weights_are_no_work() {
    let weights = weights(&noise(3 << 20));
    let want = rows(&weights);
    let copied = copy(weights, &WeightFiles::default(), 2, &|_, _| ()).unwrap();
    assert!(rows(&copied) == want);
    let none = copy(Weights::new(), &WeightFiles::default(), 2, &|_, _| panic!("nothing to say"));
    assert!(none.unwrap().is_empty());
}

#[test]
#[cfg(unix)]
fn a_file_that_was_cut_ends_the_reading_with_its_name() {
    let mapped = noise(3 << 20);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1000).unwrap();
    let mapped_file = MappedFile { path: file.path().into(), bytes: mapped.clone() };
    let files = WeightFiles::open(vec![mapped_file], |_| ());
    let error = copy(weights(&mapped), &files, 4, &|_, _| ()).unwrap_err().to_string();
    assert!(error.starts_with("device cpu: cannot read the weights in "), "{error}");
    assert!(error.contains(&file.path().display().to_string()), "{error}");
}

#[test]
fn weights_are_touched_ahead_and_an_unwanted_prefetch_ends() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&noise(3 << 20)).unwrap();
    let weights = weights(&mapped(file.path()));
    let touched = Prefetch::start(&weights).unwrap().finish();
    if cfg!(target_os = "linux") {
        // Once for each tensor.
        assert!(touched > 1 << 20, "{touched} bytes");
    }
    drop(Prefetch::start(&weights));
    assert!(Prefetch::start(&Weights::new()).is_none());
}

/// A file as the checkpoint hands it over.
#[allow(unsafe_code)]
fn mapped(path: &std::path::Path) -> Bytes {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: the file is the test's own, and nothing writes it while it is mapped.
    Bytes::from_owner(unsafe { memmap2::Mmap::map(&file) }.unwrap())
}
