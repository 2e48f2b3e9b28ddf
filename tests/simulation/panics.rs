//! A panic inside a server's task ends that task and nothing else; here it is a fault of the seed.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static HERE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

static HOOK: Once = Once::new();

/// Notes panics of this thread from now on.
pub(crate) fn watch() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            HERE.with(|all| all.borrow_mut().push(info.to_string()));
            before(info);
        }));
    });
}

/// The panics of this thread since the last call.
pub(crate) fn forget() -> Vec<String> {
    watch();
    HERE.with(std::cell::RefCell::take)
}
