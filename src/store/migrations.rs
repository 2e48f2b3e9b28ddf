//! From one layout of a store to the next: which steps there are. `migrations/README.md` says how a layout changes, and
//! each version has its page there.
//!
//! To add one: its page, its line in [`STEPS`], and what it does: a walk over all partitions in bounded pages that may be
//! interrupted and run twice, with the new version in the meta record as its last act.

use super::LAYOUT;
use super::moves::RESTORING;

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The layout it begins with; it ends with the next one.
    pub from: u32,
    /// Its page in `migrations/`.
    pub page: &'static str,
    /// What it changes.
    pub what: &'static str,
    /// There is no way, and why, and what to do instead.
    pub instead: &'static str,
}

/// All steps, lowest first.
const STEPS: &[Step] = &[Step {
    from: 1,
    page: "0002-leases-of-sessions",
    what: "clocks become texts, sessions one hash and one sorted set of each partition",
    instead: "no release has written layout 1. Let its runs end under the build that wrote it, then begin with an empty \
              store; workflows are registered again from their documents",
}];

/// What has to be done with a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// It has the layout of this version.
    Nothing,
    /// It cannot be brought to it; why, and what to do.
    Refused(String),
}

/// What has to be done with a store of this layout.
pub fn plan(found: u32) -> Plan {
    if found == LAYOUT {
        return Plan::Nothing;
    }
    if found & RESTORING != 0 {
        return Plan::Refused(
            "a restore into it has not ended: run `downbeat restore` with the same file again, or empty the store".into(),
        );
    }
    if found > LAYOUT {
        return Plan::Refused(format!(
            "it has layout {found}, which is newer than layout {LAYOUT} of this version: use a newer version. There is no way \
             back but a backup from before"
        ));
    }
    match STEPS.iter().find(|step| step.from == found) {
        Some(Step { from, page, what, instead }) => Plan::Refused(format!(
            "it has layout {from}; layout {} ({what}: migrations/{page}.md) cannot be reached from it: {instead}",
            from + 1
        )),
        None => Plan::Refused(format!("it has layout {found}, which no version of Downbeat has written")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_before_this_one_has_its_step_and_its_page() {
        let from: Vec<_> = STEPS.iter().map(|step| step.from).collect();
        assert_eq!(from, (1..LAYOUT).collect::<Vec<_>>());
        for Step { from, page, .. } in STEPS {
            let path = format!("{}/migrations/{page}.md", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert!(text.starts_with(&format!("# Layout {}", from + 1)), "{path}");
        }
    }

    #[test]
    fn what_cannot_be_migrated_is_refused_with_the_way_out() {
        assert_eq!(plan(LAYOUT), Plan::Nothing);
        for (layout, way) in [
            (1, "begin with an empty store"),
            (LAYOUT + 1, "use a newer version"),
            (LAYOUT | RESTORING, "run `downbeat restore`"),
            (0, "no version of Downbeat"),
        ] {
            let Plan::Refused(why) = plan(layout) else { panic!("{layout}") };
            assert!(why.contains(way), "{why}");
        }
    }
}
