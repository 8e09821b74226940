//! The static library of this build, for test programs that are written in C.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of this build: the test program is in `deps/` of it.
pub(crate) fn profile_dir() -> PathBuf {
    let program = std::env::current_exe().expect("the test's own path");
    program.ancestors().nth(2).expect("target/<profile>/deps/<test>").to_path_buf()
}

/// The static library of the same profile, brought up to date. Cargo builds no static library for a
/// test.
pub(crate) fn library(profile: &Path) -> Result<PathBuf, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the features of `cargo test`, so that nothing is built again.
    cargo
        .args(["build", "--quiet", "-p", "standstill-capi", "--lib"])
        .args(["--features", "standstill/default"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(name) => {
            cargo.args(["--profile", name]);
        }
    }
    // target/<profile>, or target/<triple>/<profile> where a target was named.
    let target = profile.parent().ok_or("no target folder")?;
    match target.file_name().and_then(|name| name.to_str()) {
        Some(triple) if triple.split('-').count() >= 3 => {
            cargo
                .args(["--target", triple])
                .env("CARGO_TARGET_DIR", target.parent().ok_or("no target folder")?);
        }
        _ => {
            cargo.env("CARGO_TARGET_DIR", target);
        }
    }
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(text(&output));
    }
    Ok(profile.join("libstandstill_capi.a"))
}

pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
