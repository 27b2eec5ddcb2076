//! NVRTC: the few functions that compile a kernel, loaded at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use crate::error::CudaError;

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Read = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;

/// The library with its functions.
pub(crate) struct Nvrtc {
    create: Create,
    compile: Compile,
    destroy: Destroy,
    log_size: Size,
    log: Read,
    cubin_size: Size,
    cubin: Read,
    version: (c_int, c_int),
    // After the functions, which point into it.
    _library: Library,
    _builtins: Vec<Library>,
}

/// Names under which systems know the library.
const NAMES: [&str; 6] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so",
    "nvrtc64_130_0.dll",
    "nvrtc64_120_0.dll",
    "nvrtc64_112_0.dll",
];

/// A compiled program, or the compiler's complaint.
pub(crate) type Outcome = Result<Compiled, String>;

/// Machine code and the assembler's report.
pub(crate) struct Compiled {
    /// The cubin.
    pub cubin: Vec<u8>,
    /// Registers, shared memory and spills, as the assembler prints them.
    pub log: String,
}

impl Nvrtc {
    /// Loads the library: from the path given, else under the names that systems use. A folder in the path
    /// needs not be known to the system.
    pub fn load(path: Option<&Path>) -> Result<Self, CudaError> {
        let candidates: Vec<PathBuf> = match path {
            Some(path) => vec![path.to_path_buf()],
            None => NAMES.iter().map(PathBuf::from).collect(),
        };
        for candidate in &candidates {
            let builtins = builtins_beside(candidate);
            // SAFETY: NVRTC has no initialisers that could do harm; the name is NVRTC's own or the user's choice.
            let Ok(library) = (unsafe { Library::new(candidate) }) else { continue };
            if let Some(nvrtc) = Self::bind(library, builtins) {
                return Ok(nvrtc);
            }
        }
        let tried: Vec<String> = candidates.iter().map(|c| c.display().to_string()).collect();
        Err(CudaError::NoNvrtc { tried: tried.join(", ") })
    }

    fn bind(library: Library, builtins: Vec<Library>) -> Option<Self> {
        // SAFETY: these are the signatures of nvrtc.h since version 11.1; the functions live as long as the
        // library, which is kept beside them.
        unsafe {
            let version: Version = *library.get(b"nvrtcVersion\0").ok()?;
            let (mut major, mut minor) = (0, 0);
            if version(&raw mut major, &raw mut minor) != 0 {
                return None;
            }
            Some(Self {
                create: *library.get(b"nvrtcCreateProgram\0").ok()?,
                compile: *library.get(b"nvrtcCompileProgram\0").ok()?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").ok()?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0").ok()?,
                log: *library.get(b"nvrtcGetProgramLog\0").ok()?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize\0").ok()?,
                cubin: *library.get(b"nvrtcGetCUBIN\0").ok()?,
                version: (major, minor),
                _library: library,
                _builtins: builtins,
            })
        }
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles a text with headers (name, content) to machine code.
    pub fn compile(
        &self,
        text: &str,
        name: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Outcome {
        let text = c_string(text)?;
        let name = c_string(name)?;
        let names: Vec<CString> =
            headers.iter().map(|(n, _)| c_string(n)).collect::<Result<_, _>>()?;
        let contents: Vec<CString> =
            headers.iter().map(|(_, c)| c_string(c)).collect::<Result<_, _>>()?;
        let options: Vec<CString> =
            options.iter().map(|o| c_string(o)).collect::<Result<_, _>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|s| s.as_ptr()).collect()
        };
        let (name_list, content_list) = (pointers(&names), pointers(&contents));
        let option_list = pointers(&options);
        let mut program: Program = ptr::null_mut();
        // SAFETY: all strings and lists outlive the calls; the lists have the lengths given.
        unsafe {
            let status = (self.create)(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                content_list.as_ptr(),
                name_list.as_ptr(),
            );
            if status != 0 {
                return Err(format!("nvrtcCreateProgram gives {status}"));
            }
            let status = (self.compile)(program, option_list.len() as c_int, option_list.as_ptr());
            let log = self.text_of(program);
            let outcome = if status == 0 {
                self.cubin_of(program).map(|cubin| Compiled { cubin, log })
            } else {
                Err(format!("error {status}\n{log}"))
            };
            (self.destroy)(&raw mut program);
            outcome
        }
    }

    /// # Safety
    /// The program is alive.
    unsafe fn text_of(&self, program: Program) -> String {
        let mut size = 0;
        // SAFETY: the caller's promise; the buffer has the size that NVRTC asks for.
        unsafe {
            if (self.log_size)(program, &raw mut size) != 0 || size == 0 {
                return String::new();
            }
            let mut text = vec![0u8; size];
            if (self.log)(program, text.as_mut_ptr().cast()) != 0 {
                return String::new();
            }
            CStr::from_bytes_until_nul(&text)
                .map(|t| t.to_string_lossy().into_owned())
                .unwrap_or_default()
        }
    }

    /// # Safety
    /// The program is alive and compiled.
    unsafe fn cubin_of(&self, program: Program) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the caller's promise; the buffer has the size that NVRTC asks for.
        unsafe {
            let status = (self.cubin_size)(program, &raw mut size);
            if status != 0 {
                return Err(format!("nvrtcGetCUBINSize gives {status}"));
            }
            let mut cubin = vec![0u8; size];
            match (self.cubin)(program, cubin.as_mut_ptr().cast()) {
                0 => Ok(cubin),
                status => Err(format!("nvrtcGetCUBIN gives {status}")),
            }
        }
    }
}

/// NVRTC's second library, of any version, from the folder of a path. NVRTC asks for it by its name alone when it
/// compiles, and gets the one that is loaded already.
fn builtins_beside(library: &Path) -> Vec<Library> {
    let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Some(entries) = folder.and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let wanted = |name: &str| {
        let builtins = name.starts_with("libnvrtc-builtins") || name.starts_with("nvrtc-builtins");
        builtins && !name.ends_with(".a")
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(wanted))
        // SAFETY: as for NVRTC itself.
        .filter_map(|path| unsafe { Library::new(path) }.ok())
        .collect()
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a source text holds a NUL character".into())
}
