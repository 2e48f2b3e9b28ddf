//! The scripts: each is a file with a header, is loaded at every connect and again when Redis has forgotten it.

use redis::{Cmd, ToRedisArgs};
use std::sync::LazyLock;

/// A script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Open,
    Commit,
    Take,
    Discard,
    Tick,
    SessionPut,
    SessionRenew,
    SessionRead,
    SessionRemove,
    List,
    WorkflowPut,
    WorkflowRead,
    WorkflowRemove,
    VersionPut,
    RestoreClock,
    RestoreEnd,
    EventsTrim,
}

impl Script {
    pub(super) const ALL: [Self; 17] = [
        Self::Open,
        Self::Commit,
        Self::Take,
        Self::Discard,
        Self::Tick,
        Self::SessionPut,
        Self::SessionRenew,
        Self::SessionRead,
        Self::SessionRemove,
        Self::List,
        Self::WorkflowPut,
        Self::WorkflowRead,
        Self::WorkflowRemove,
        Self::VersionPut,
        Self::RestoreClock,
        Self::RestoreEnd,
        Self::EventsTrim,
    ];

    pub(super) fn source(self) -> &'static str {
        match self {
            Self::Open => include_str!("lua/open.lua"),
            Self::Commit => include_str!("lua/commit.lua"),
            Self::Take => include_str!("lua/take.lua"),
            Self::Discard => include_str!("lua/discard.lua"),
            Self::Tick => include_str!("lua/tick.lua"),
            Self::SessionPut => include_str!("lua/session_put.lua"),
            Self::SessionRenew => include_str!("lua/session_renew.lua"),
            Self::SessionRead => include_str!("lua/session_read.lua"),
            Self::SessionRemove => include_str!("lua/session_remove.lua"),
            Self::List => include_str!("lua/list.lua"),
            Self::WorkflowPut => include_str!("lua/workflow_put.lua"),
            Self::WorkflowRead => include_str!("lua/workflow_read.lua"),
            Self::WorkflowRemove => include_str!("lua/workflow_remove.lua"),
            Self::VersionPut => include_str!("lua/version_put.lua"),
            Self::RestoreClock => include_str!("lua/restore_clock.lua"),
            Self::RestoreEnd => include_str!("lua/restore_end.lua"),
            Self::EventsTrim => include_str!("lua/events_trim.lua"),
        }
    }

    fn sha(self) -> &'static str {
        static SHAS: LazyLock<[String; Script::ALL.len()]> =
            LazyLock::new(|| Script::ALL.map(|s| redis::Script::new(s.source()).get_hash().to_owned()));
        SHAS[self as usize].as_str()
    }
}

/// One call of a script: `keys` keys, then arguments.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) script: Script,
    pub(super) cmd: Cmd,
}

impl Call {
    pub(super) fn new(script: Script, keys: usize) -> Self {
        Self::sized(script, keys, 16, 1_024)
    }

    /// With room for so many keys and arguments, and so many bytes of them.
    pub(super) fn sized(script: Script, keys: usize, arguments: usize, bytes: usize) -> Self {
        let mut cmd = Cmd::with_capacity(arguments + 3, bytes + 64);
        cmd.arg("EVALSHA").arg(script.sha()).arg(keys);
        Self { script, cmd }
    }

    /// Appends a key or an argument.
    pub(super) fn arg(&mut self, value: impl ToRedisArgs) -> &mut Self {
        self.cmd.arg(value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_says_what_it_takes_and_returns() {
        for script in Script::ALL {
            let source = script.source();
            for part in ["-- KEYS", "-- ARGV", "-- Returns"] {
                assert!(source.contains(part), "{script:?} has no line {part:?}");
            }
            assert!(!source.contains("cjson"), "{script:?} must not use cjson");
        }
    }

    #[test]
    fn each_script_has_its_own_sha() {
        let shas: std::collections::BTreeSet<_> = Script::ALL.iter().map(|s| s.sha()).collect();
        assert_eq!(shas.len(), Script::ALL.len());
    }
}
