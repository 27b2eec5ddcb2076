//! A device that fails takes one request down, never the server.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use common::{CONTEXT, ask, device, endless, serve_device};
use lily_cpu::CpuDevice;
use lily_plan::{BufferId, Buffers, Device, DeviceError, Plan, PlanId, Precision, Weights};
use lily_server::Settings;
use serde_json::json;

const SOUND: u8 = 0;
const ERROR: u8 = 1;
const PANIC: u8 = 2;
const NOT_A_NUMBER: u8 = 3;
/// Bytes of a row of the tiny model's logits.
const LOGITS_BYTES: usize = 512 * 4;

/// The CPU, with a fault that can be switched on.
struct Faulty {
    inner: CpuDevice,
    fault: Arc<AtomicU8>,
}

impl Device for Faulty {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        self.inner.allocate(buffers, weights)
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        self.inner.compile(plan)
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        match self.fault.load(Ordering::Relaxed) {
            ERROR => Err(DeviceError::Usage("a broken wire".into())),
            PANIC => panic!("a fault that nobody foresaw"),
            _ => self.inner.submit(plan),
        }
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.inner.wait()
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        self.inner.run_launch(plan, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(buffer, offset, out)?;
        if self.fault.load(Ordering::Relaxed) == NOT_A_NUMBER && out.len() == LOGITS_BYTES {
            out.fill(0xff);
        }
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(buffer, offset, data)
    }

    fn buffers(&self) -> &Arc<Buffers> {
        self.inner.buffers()
    }
}

#[test]
fn a_fault_ends_one_request_and_the_next_one_works() {
    let fault = Arc::new(AtomicU8::new(SOUND));
    let faulty = Faulty { inner: device(), fault: Arc::clone(&fault) };
    let server = serve_device(Box::new(faulty), CONTEXT, Settings::default());
    let body = ask(json!({ "seed": 4, "max_tokens": 8 }));
    let sound = server.chat(&body)["choices"].clone();
    for kind in [ERROR, PANIC, NOT_A_NUMBER] {
        fault.store(kind, Ordering::Relaxed);
        // The headers were sent before the work began.
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "server_error");
        assert_eq!(reply.json()["error"]["code"], "internal_error");

        fault.store(SOUND, Ordering::Relaxed);
        let mut events = server.stream_chat(&endless(json!({})));
        events.until_text();
        fault.store(kind, Ordering::Relaxed);
        let error = loop {
            let event = events.next();
            if !event["error"].is_null() {
                break event["error"].clone();
            }
        };
        assert_eq!(error["code"], "internal_error");
        assert_eq!(events.data(), None, "nothing comes behind an error");

        fault.store(SOUND, Ordering::Relaxed);
        assert_eq!(server.chat(&body)["choices"], sound, "after fault {kind}");
    }
}
