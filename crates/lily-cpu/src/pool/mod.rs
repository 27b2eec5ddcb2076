//! Runs the tiles of a launch.

use lily_kernels::cpu::{CpuFace, CpuLaunch, Scratch};

/// Threads with their scratch memory.
pub(crate) struct Pool {
    scratch: Scratch,
}

impl Pool {
    pub(crate) fn new(_threads: usize) -> Self {
        Self { scratch: Scratch::default() }
    }

    /// Runs all tiles of one launch.
    pub(crate) fn run(&mut self, face: CpuFace, launch: &CpuLaunch<'_>) {
        for tile in 0..(face.tiles)(launch) {
            (face.run)(launch, tile, &mut self.scratch);
        }
    }
}
