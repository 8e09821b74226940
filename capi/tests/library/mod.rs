//! The shared library of this build, loaded as a program of another language would do it.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;

pub(crate) type Pointer = *mut c_void;

pub(crate) struct Library(Pointer);

// SAFETY: a handle for `dlsym`, which may be called from anywhere.
unsafe impl Send for Library {}
// SAFETY: a handle for `dlsym`, which may be called from anywhere.
unsafe impl Sync for Library {}

impl Library {
    /// Where the library lies, brought up to date: Cargo builds no shared library for a test.
    pub(crate) fn build() -> PathBuf {
        // The folder of this build: the test is in `deps/` of it.
        let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf();
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev".to_owned(),
            Some(name) => name.to_owned(),
        };
        // target/<profile>, or target/<triple>/<profile> where a target was named.
        let target = folder.parent().unwrap();
        let triple = target
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| name.split('-').count() >= 3);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // With the features of `cargo test`, so that nothing is built again.
        cargo.args(["build", "--quiet", "-p", "standstill-capi", "--lib"]);
        cargo.args(["--features", "standstill/default"]);
        cargo.args(["--profile", &profile, "--target-dir"]);
        match triple {
            Some(triple) => cargo.arg(target.parent().unwrap()).args(["--target", triple]),
            None => cargo.arg(target),
        };
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(built.is_ok_and(|status| status.success()), "the library cannot be built");
        folder.join("libstandstill_capi.so")
    }

    pub(crate) fn load(path: &std::path::Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: our own library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
        Self(handle)
    }

    pub(crate) fn address(&self, symbol: &str) -> Pointer {
        let name = CString::new(symbol).unwrap();
        // SAFETY: an open library.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{symbol} is not exported");
        found
    }

    /// # Safety
    ///
    /// The symbol is a function that can be called so.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &str) -> F {
        let address = self.address(symbol);
        assert_eq!(size_of::<F>(), size_of::<Pointer>());
        // SAFETY: as the caller says.
        unsafe { std::mem::transmute_copy::<Pointer, F>(&address) }
    }
}
