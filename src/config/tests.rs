//! Settings: what beats what, and what is refused.

use super::*;

fn none(_: &str) -> Option<String> {
    None
}

#[test]
fn the_defaults_are_valid_and_are_what_is_promised() {
    let config = Config::of(None, none, Overrides::new()).unwrap();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:7070");
    assert_eq!(config.server.drain, Duration::from_secs(10));
    assert_eq!(config.store, Store::Embedded { data: "data".into() });
    assert_eq!(config.durability, Durability::Local);
    assert_eq!((config.redis.backlog_commands, config.redis.backlog_mb), (10_000, 64));
    assert_eq!((config.redis.waits, config.redis.wait), (true, Duration::from_secs(1)));
    assert_eq!((&config.redis.username, &config.redis.ca_file), (&None, &None));
    assert_eq!(config.workers.lease, Duration::from_secs(10));
    assert_eq!(config.log, Log { filter: "info".into(), format: LogFormat::Text });
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let file = "[server]\nlisten = \"0.0.0.0:1\"\ndrain = \"1s\"\n[store]\nurl = \"redis://file\"";
    let env = |name: &str| match name {
        "DOWNBEAT_LISTEN" => Some("0.0.0.0:2".to_owned()),
        "DOWNBEAT_STORE" => Some("redis://env".to_owned()),
        _ => None,
    };
    let flags = Overrides::from([(("server", "listen"), "0.0.0.0:3".to_owned())]);
    let config = Config::of(Some(("f.toml", file)), env, flags).unwrap();
    assert_eq!(config.server.listen.port(), 3);
    assert_eq!(config.store, Store::Redis { url: "redis://env".into() });
    assert_eq!(config.server.drain, Duration::from_secs(1));
}

#[test]
fn every_fault_is_told_at_once_with_its_place() {
    let file = "[server]\nlisten = \"7070\"\n[workers]\nping = \"9s\"\nack = \"10\"";
    let env = |name: &str| (name == "DOWNBEAT_STORE").then(|| "mysql://me:secret@db".to_owned());
    let flags = Overrides::from([(("log", "format"), "xml".to_owned())]);
    let ConfigError(text) = Config::of(Some(("f.toml", file)), env, flags).unwrap_err();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with("f.toml: server.listen: \"7070\" is no address"), "{text}");
    assert!(lines[1].starts_with("DOWNBEAT_STORE: \"mysql://…@db\" is neither"), "{text}");
    assert!(lines[2].starts_with("f.toml: workers.ack: \"10\" is no duration"), "{text}");
    assert!(lines[3].starts_with("f.toml: workers.ping: must be at most half"), "{text}");
    assert!(lines[4].starts_with("the flag for log.format: \"xml\""), "{text}");
}

#[test]
fn threads_suit_the_store_unless_they_are_given() {
    let of = |store: &str, threads: Option<&str>| {
        let mut flags = Overrides::from([(("store", "url"), store.to_owned())]);
        flags.extend(threads.map(|t| (("server", "threads"), t.to_owned())));
        Config::of(None, none, flags)
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(of("embedded", None).unwrap().threads(), cores);
    assert_eq!(of("redis://localhost", None).unwrap().threads(), (cores / 2).max(1));
    assert_eq!(of("redis://localhost", Some("3")).unwrap().threads(), 3);
    for (store, threads, lanes) in [
        ("embedded", "1", 1),
        ("embedded", "2", 2),
        ("embedded", "16", 4),
        ("redis://localhost", "1", 1),
        ("redis://localhost", "8", 4),
    ] {
        assert_eq!(of(store, Some(threads)).unwrap().lanes(), lanes, "{store} on {threads} threads");
    }
    for bad in ["0", "1025", "many"] {
        let expected = format!("the flag for server.threads: {bad:?} is no number from 1 to 1024");
        assert_eq!(of("embedded", Some(bad)).unwrap_err().0, expected);
    }
}

#[test]
fn the_number_of_partitions_is_left_to_the_store_unless_it_is_given() {
    assert_eq!(Config::of(None, none, Overrides::new()).unwrap().partitions, None);
    let flag = |text: &str| Overrides::from([(("store", "partitions"), text.to_owned())]);
    for (text, number) in [("1", 1), ("64", 64), ("1024", 1_024)] {
        assert_eq!(Config::of(None, none, flag(text)).unwrap().partitions, Some(number));
    }
    for bad in ["0", "1025", "-1", "many", "8.0"] {
        let ConfigError(text) = Config::of(None, none, flag(bad)).unwrap_err();
        let expected = format!("the flag for store.partitions: {bad:?} is no number from 1 to 1024");
        assert_eq!(text, expected);
    }
}

#[test]
fn unknown_keys_are_refused_with_their_line() {
    for (file, word) in [("[server]\nport = 1", "port"), ("[sever]", "sever"), ("x = 1", "x")] {
        let ConfigError(text) = Config::of(Some(("f.toml", file)), none, Overrides::new()).unwrap_err();
        assert!(text.starts_with("f.toml: ") && text.contains(word) && text.contains("line"), "{text}");
    }
}

#[test]
fn durations_are_whole_numbers_with_units_in_order() {
    assert_eq!(parse_duration("1h30m"), Some(Duration::from_mins(90)));
    assert_eq!(parse_duration("1m2s3ms"), Some(Duration::from_millis(62_003)));
    for bad in ["", "10", "s", "1.5s", "-1s", "1s1m", "1s1s", "1 s", "99999999999999999999s", "1d"] {
        assert_eq!(parse_duration(bad), None, "{bad:?}");
    }
}

#[test]
fn every_variable_names_a_setting_of_the_defaults() {
    let mut defaults = Overrides::new();
    file::parse(DEFAULTS, "defaults", &mut defaults).unwrap();
    let named: std::collections::BTreeSet<_> = VARIABLES.iter().map(|(_, s, k)| (*s, *k)).collect();
    assert_eq!(named, defaults.keys().copied().collect());
    for (name, _, _) in VARIABLES {
        assert!(DEFAULTS.contains(name), "{name} must be explained beside its setting");
    }
}

#[test]
fn no_password_is_shown() {
    for (url, shown) in [
        ("redis://u:p@ss@h:1/2", "redis://…@h:1/2"),
        ("redis://h:1", "redis://h:1"),
        ("unix:///s?user=u&pass=se@cret", "unix://…"),
        ("redis://u:se?cret@h", "redis://…"),
        ("rediss+sentinel://u:secret@a,b/main", "rediss+sentinel://…@a,b/main"),
    ] {
        assert_eq!(redacted(url), shown);
    }
}

#[test]
fn the_examples_of_the_guide_are_valid() {
    let text = include_str!("../../examples/redis.toml");
    let config = Config::of(Some(("redis.toml", text)), none, Overrides::new()).unwrap();
    assert_eq!(config.durability, Durability::Replicated);
    assert_eq!(config.redis.username.as_deref(), Some("downbeat"));
    let text = include_str!("../../examples/limits.toml");
    let config = Config::of(Some(("limits.toml", text)), none, Overrides::new()).unwrap();
    assert_eq!(config.limits.connections, 2_000);
}

#[test]
fn settings_of_redis_are_read_and_their_faults_told() {
    let file = "[store]\nurl = \"redis+sentinel://a,b/main\"\ndurability = \"replicated\"\n[redis]\nbacklog = \"fail_fast\"\n\
                ca_file = \"ca.pem\"\nwait = \"500ms\"\nbacklog_mb = \"7\"";
    let env = |name: &str| (name == "DOWNBEAT_REDIS_PASSWORD_FILE").then(|| "/run/password".to_owned());
    let config = Config::of(Some(("f.toml", file)), env, Overrides::new()).unwrap();
    assert_eq!(config.durability, Durability::Replicated);
    let redis = config.redis;
    assert_eq!((redis.waits, redis.backlog_mb, redis.wait), (false, 7, Duration::from_millis(500)));
    assert_eq!((redis.ca_file, redis.password_file), (Some("ca.pem".into()), Some("/run/password".into())));
    let file = "[store]\ndurability = \"replicated\"\n[redis]\nbacklog = \"drop\"\nwait = \"5s\"\nkey_file = \"k\"\nbacklog_mb = \"0\"";
    let error = Config::of(Some(("f.toml", file)), none, Overrides::new()).unwrap_err().to_string();
    for part in [
        "f.toml: store.durability: the embedded store has no replicas",
        "f.toml: redis.backlog: \"drop\" is neither \"queue\" nor \"fail_fast\"",
        "f.toml: redis.wait:",
        "redis.cert_file: is set together",
        "f.toml: redis.backlog_mb: \"0\" is no number",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}
