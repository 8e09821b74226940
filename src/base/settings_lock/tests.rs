//! Tests of the lock of settings.

#![forbid(unsafe_code)]

use super::*;

#[test]
fn the_thread_that_holds_the_lock_uses_a_setting_and_others_wait() {
    let setting = Setting::new(1);
    let is_locked = || std::thread::scope(|s| s.spawn(|| LOCK.try_lock().is_err()).join());
    let hold = SettingsHold::new();
    setting.with(|value| *value += 1);
    assert!(is_locked().expect("a thread"));
    drop(hold);
    assert!(!IS_HELD.get());
    assert_eq!(setting.with(|value| *value), 2);
    assert!(!IS_HELD.get());
}
