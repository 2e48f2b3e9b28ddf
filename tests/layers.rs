//! Holds the layers: which folder may import which, who may name which library, and who may call what.
//!
//! ```text
//! model 0 < engine 1 < store 2 < dispatch, timers, events 3 < app 4 < api, ui 5
//! cli sees all; client sees proto alone; config, lifecycle and telemetry see each other
//! ```
//!
//! It reads the sources as text: comments and literals are taken out, the rest is cut into tokens, and every
//! path that begins at `crate`, or at enough `super`s to get there, is followed to the folder it names. What it
//! finds in bad snippets is tested below, so that it cannot pass by being blind.
//!
//! To add a folder: its line in [`LAYERS`]. To reserve a library: its line in [`LIBRARIES`].

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

/// Folders (or files) under `src/`, each with what it may import besides itself.
const LAYERS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("engine", &["model"]),
    ("occupancy", &["model"]),
    ("chart", &[]),
    // The engine is below the others, and still only `app` calls it.
    ("store", &["model"]),
    ("dispatch", &["model", "store"]),
    ("timers", &["model", "store"]),
    ("events", &["model", "store"]),
    ("app", &["model", "engine", "store", "dispatch", "timers", "events"]),
    ("api", &["model", "store", "dispatch", "timers", "events", "app", "proto"]),
    ("ui", &["model", "store", "dispatch", "timers", "events", "app"]),
    ("client", &["proto"]),
    ("config", &["lifecycle", "telemetry"]),
    ("lifecycle", &["config", "telemetry"]),
    ("telemetry", &["config", "lifecycle"]),
    (
        "cli",
        &[
            "model",
            "engine",
            "occupancy",
            "chart",
            "store",
            "dispatch",
            "timers",
            "events",
            "app",
            "api",
            "ui",
            "client",
            "proto",
            "config",
            "lifecycle",
            "telemetry",
        ],
    ),
    // The root declares the modules and imports none of them.
    ("lib", &[]),
    ("main", &["cli"]),
];

/// Libraries that only some folders may name.
const LIBRARIES: &[(&str, &[&str])] = &[
    ("axum", &["api", "ui"]),
    ("hyper", &["api"]),
    ("prometheus_client", &["api"]),
    ("utoipa", &["api"]),
    ("utoipa_axum", &["api"]),
    ("tonic", &["api", "client", "lib"]),
    ("tonic_health", &["api"]),
    ("tonic_reflection", &["api"]),
    ("tonic_types", &["api", "client"]),
    ("redis", &["store"]),
    ("fjall", &["store"]),
    ("redb", &["store"]),
    ("clap", &["cli"]),
];

/// Something that must not be.
#[derive(Debug, PartialEq, Eq)]
struct Breach {
    line: usize,
    what: String,
}

// ---- reading

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// Identifiers, `::` and single signs; comments gone, literals empty.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let (mut i, mut line) = (0, 1);
    while i < chars.len() {
        let c = at(i);
        let from = i;
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= chars.len() {
                    break;
                }
            }
        } else if let Some(end) = raw_string(&chars, i) {
            i = end;
            tokens.push(Token { text: "\"\"".into(), line });
        } else if c == '"' || (matches!(c, 'b' | 'c') && at(i + 1) == '"') {
            i += if c == '"' { 1 } else { 2 };
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
            tokens.push(Token { text: "\"\"".into(), line });
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character; a lifetime has no closing quote.
            i += 1;
            while i < chars.len() && at(i) != '\'' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if word(c) {
            while word(at(i)) {
                i += 1;
            }
            let text: String = chars[from..i].iter().collect();
            tokens.push(Token { text, line });
        } else if c == ':' && at(i + 1) == ':' {
            i += 2;
            tokens.push(Token { text: "::".into(), line });
        } else {
            i += 1;
            if !c.is_whitespace() {
                tokens.push(Token { text: c.to_string(), line });
            }
        }
        line += chars[from..i.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// The end of a raw string that begins at `i`.
fn raw_string(chars: &[char], i: usize) -> Option<usize> {
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    if i > 0 && (at(i - 1).is_alphanumeric() || at(i - 1) == '_') {
        return None;
    }
    let mut j = if matches!(at(i), 'b' | 'c') { i + 1 } else { i };
    if at(j) != 'r' {
        return None;
    }
    j += 1;
    let hashes = chars[j.min(chars.len())..].iter().take_while(|c| **c == '#').count();
    j += hashes;
    if at(j) != '"' {
        return None;
    }
    j += 1;
    while j < chars.len() {
        if at(j) == '"' && (1..=hashes).all(|k| at(j + k) == '#') {
            return Some(j + 1 + hashes);
        }
        j += 1;
    }
    Some(j)
}

/// A path in the source, resolved as far as its first names: `["store", "redis"]`, or `["::", "tonic"]` for one
/// that begins at a library.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    names: Vec<String>,
    line: usize,
}

/// Every path that begins at `crate`, `super` or `self`, seen from `module` (a module path without `crate`), and
/// every one that begins at another name and goes on with `::`. Groups of `use` are taken apart.
fn paths(tokens: &[Token], module: &[String]) -> Vec<Found> {
    let mut found = Vec::new();
    let mut module = module.to_vec();
    // Modules inside the file, each with the depth of braces at which it ends.
    let mut inner: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut i = 0;
    while i < tokens.len() {
        let text = tokens[i].text.as_str();
        match text {
            "{" => depth += 1,
            "}" => {
                if inner.last() == Some(&depth) {
                    inner.pop();
                    module.pop();
                }
                depth -= 1;
            }
            "mod" if tokens.get(i + 2).is_some_and(|t| t.text == "{") => {
                module.push(tokens[i + 1].text.clone());
                inner.push(depth + 1);
                i += 1;
            }
            _ if is_name(text) && !continues(tokens, i) => {
                let used = i > 0 && tokens[i - 1].text == "use";
                if used || tokens.get(i + 1).is_some_and(|t| t.text == "::") {
                    i = path(tokens, i, &mut Vec::new(), &module, &mut found);
                    continue;
                }
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// A name that can stand in a path; words of the language that stand before a path are none.
fn is_name(text: &str) -> bool {
    let keyword =
        matches!(text, "use" | "dyn" | "impl" | "mut" | "for" | "in" | "as" | "return" | "match" | "else");
    !keyword && text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Whether the name at `i` is not the first of its path.
fn continues(tokens: &[Token], i: usize) -> bool {
    let before = |n: usize| i.checked_sub(n).map_or("", |j| tokens[j].text.as_str());
    // `::name` at the beginning is a library; `x::name` and `>::name` are not.
    let keyword =
        matches!(before(2), "use" | "dyn" | "impl" | "mut" | "for" | "in" | "as" | "return" | "match");
    before(1) == "." || before(1) == "::" && !keyword && (is_name(before(2)) || before(2) == ">")
}

/// Reads one path (or one branch of a `use`) from `i`; returns where it ends.
fn path(
    tokens: &[Token],
    mut i: usize,
    prefix: &mut Vec<String>,
    module: &[String],
    found: &mut Vec<Found>,
) -> usize {
    let length = prefix.len();
    let line = tokens.get(i).map_or(0, |t| t.line);
    loop {
        let text = tokens.get(i).map_or("", |t| t.text.as_str());
        if text == "{" {
            i += 1;
            while tokens.get(i).is_some_and(|t| t.text != "}") {
                i = match tokens[i].text.as_str() {
                    "," => i + 1,
                    _ => path(tokens, i, prefix, module, found).max(i + 1),
                };
            }
            prefix.truncate(length);
            return i + 1;
        }
        if !is_name(text) && text != "*" {
            break;
        }
        prefix.push(text.to_owned());
        i += 1;
        if tokens.get(i).is_none_or(|t| t.text != "::") {
            break;
        }
        i += 1;
    }
    if prefix.len() > length {
        found.extend(resolve(prefix, module).map(|names| Found { names, line }));
    }
    prefix.truncate(length);
    // `a as b`: the new name is no path.
    if tokens.get(i).is_some_and(|t| t.text == "as") { i + 2 } else { i }
}

/// From a written path to one from the root of the crate, or from a library.
fn resolve(path: &[String], module: &[String]) -> Option<Vec<String>> {
    let mut names: Vec<String> = match path.first()?.as_str() {
        "crate" | "downbeat" => Vec::new(),
        "self" | "super" => module.to_vec(),
        "Self" => return None,
        _ => vec!["::".to_owned()],
    };
    let library = names.first().is_some_and(|n| n == "::");
    for (n, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" | "downbeat" if n == 0 => {}
            "self" | "*" => {}
            "super" if !library => {
                names.pop();
            }
            _ => names.push(name.clone()),
        }
    }
    Some(names)
}

// ---- judging

/// The module path of a file under `src/`: `store/redis/mod.rs` is `store::redis`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs");
    let mut names: Vec<String> = path.split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|n| n == "mod") {
        names.pop();
    }
    names
}

fn check(file: &str, source: &str) -> Vec<Breach> {
    let module = module_of(file);
    let layer = module[0].as_str();
    let tokens = tokens(source);
    let mut breaches = Vec::new();
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
        return vec![Breach { line: 1, what: format!("{layer} is in no layer") }];
    };
    let root: &[String] = if layer == "lib" { &[] } else { &module };
    for Found { names, line } in paths(&tokens, root) {
        let first = names.first().map_or("", String::as_str);
        let breach = if first == "::" {
            let library = names.get(1).map_or("", String::as_str);
            let holders = LIBRARIES.iter().find(|(name, _)| *name == library).map(|(_, holders)| holders);
            holders.is_some_and(|h| !h.contains(&layer) && !is_module(&tokens, library)).then_some(library)
        } else {
            let known = LAYERS.iter().any(|(name, _)| *name == first) || first == "proto";
            (known && first != layer && !allowed.contains(&first)).then_some(first)
        };
        if let Some(name) = breach {
            breaches.push(Breach { line, what: format!("{layer} must not name {name}") });
        }
    }
    if !matches!(layer, "app" | "store" | "engine") {
        let called =
            tokens.windows(3).filter(|w| w[0].text == "." && w[1].text == "commit" && w[2].text == "(");
        let what = || "only app calls Store::commit".to_owned();
        breaches.extend(called.map(|w| Breach { line: w[1].line, what: what() }));
    }
    breaches.dedup();
    breaches
}

/// Whether a bare `name::` means a module that this file declares or imports from the crate.
fn is_module(tokens: &[Token], name: &str) -> bool {
    let declared = tokens.windows(2).any(|w| w[0].text == "mod" && w[1].text == name);
    // `use crate::store::redis::{self, …}` in the composition root.
    let imported = paths(tokens, &[])
        .iter()
        .any(|f| f.names.first().is_some_and(|n| n != "::") && f.names.last().is_some_and(|n| n == name));
    declared || imported
}

/// Lines outside `redis/keys.rs` whose text literals look like a Redis key of ours.
fn spelled_keys(file: &str, source: &str) -> Vec<usize> {
    if !file.starts_with("store/redis/") || file == "store/redis/keys.rs" {
        return Vec::new();
    }
    let code = source.split("#[cfg(test)]").next().unwrap_or(source);
    let key = |line: &str| line.split("//").next().unwrap_or("").contains("\"db:") || line.contains("\"{{");
    code.lines().enumerate().filter(|(_, l)| key(l)).map(|(n, _)| n + 1).collect()
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

// ---- tests

#[test]
fn imports_point_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 30, "only {} files were found", files.len());
    let mut report = Vec::new();
    let mut followed = 0;
    for path in files {
        let file = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        followed += paths(&tokens(&source), &module_of(&file)).len();
        report
            .extend(check(&file, &source).into_iter().map(|b| format!("src/{file}:{}: {}", b.line, b.what)));
        report.extend(
            spelled_keys(&file, &source).into_iter().map(|n| format!("src/{file}:{n}: spells a key")),
        );
    }
    assert!(followed > 1_000, "only {followed} paths were followed");
    assert!(report.is_empty(), "{}", report.join("\n"));
}

fn breaches(file: &str, source: &str) -> Vec<String> {
    check(file, source).into_iter().map(|b| format!("{}: {}", b.line, b.what)).collect()
}

#[test]
fn an_import_that_points_up_is_found_in_every_form() {
    let up = "1: model must not name store";
    for source in [
        "use crate::store::Store;",
        "use crate::{ids::X, store::Store};",
        "use crate::{model::{a, b}, store};",
        "pub(crate) use crate::store::*;",
        "use crate::store as s;",
        "fn f(x: &dyn crate::store::Store) {}",
        "use super::super::super::store::Store;",
        "fn f() -> super::super::super::store::Result<()> { Ok(()) }",
        "mod inner { use super::super::super::super::store::X; }",
        "fn f() { g::<crate::store::X>() }",
        "use crate :: store :: X ;",
        "/* a /* b */ c */ use crate::store::X; // d",
        "const S: &str = r#\"\"#; use crate::store::X;",
        "const C: char = '\"'; use crate::store::X;",
    ] {
        assert_eq!(breaches("model/plan/deep.rs", source), [up], "{source}");
    }
}

#[test]
fn what_only_looks_like_an_import_is_none() {
    for source in [
        "// use crate::store::Store;",
        "/// See [`crate::store::Store`].\nfn f() {}",
        "/* use crate::store::X; */",
        "const S: &str = \"use crate::store::X;\";",
        "const S: &str = r##\"crate::store::X \"# \"##;",
        "use crate::model::ids::{RunId, TaskId};",
        "use super::ids::RunId;",
        "mod store { }\nfn f<'a>(x: &'a str) {}",
        "use std::collections::BTreeMap as store;",
    ] {
        assert_eq!(breaches("model/plan.rs", source), [""; 0], "{source}");
    }
}

#[test]
fn every_pair_of_layers_is_judged() {
    let allowed =
        |from: &str, to: &str| breaches(&format!("{from}/x.rs"), &format!("use crate::{to}::X;")).is_empty();
    let order = ["model", "engine", "store", "dispatch", "app", "api"];
    for (n, from) in order.iter().enumerate() {
        for (m, to) in order.iter().enumerate() {
            // The engine is called by app alone.
            let engine = *to == "engine" && !["engine", "app"].contains(from);
            assert_eq!(allowed(from, to), m <= n && !engine, "{from} → {to}");
        }
        assert!(allowed("cli", from), "cli → {from}");
        assert!(!allowed("client", from), "client → {from}");
        assert!(!allowed(from, "cli") && !allowed(from, "client"), "{from} → cli, client");
    }
    assert!(allowed("client", "proto") && allowed("api", "proto"));
    assert!(!allowed("app", "proto") && !allowed("store", "proto"));
    assert!(!allowed("dispatch", "timers") && !allowed("timers", "events") && !allowed("api", "ui"));
    assert_eq!(breaches("new/x.rs", ""), ["1: new is in no layer"]);
}

#[test]
fn libraries_stay_in_their_layers() {
    for (file, source) in [
        ("app/x.rs", "use tonic::Status;"),
        ("app/x.rs", "fn f() -> axum::Router { todo() }"),
        ("engine/x.rs", "use ::redis::Value;"),
        ("api/x.rs", "use redis::{AsyncCommands, Value};"),
        ("client/x.rs", "use axum::Router;"),
        ("model/x.rs", "impl clap::ValueEnum for X {}"),
        ("cli/x.rs", "use fjall::Database;"),
    ] {
        assert_eq!(breaches(file, source).len(), 1, "{file}: {source}");
    }
    for (file, source) in [
        ("store/redis/link.rs", "use redis::Value;"),
        ("api/grpc/x.rs", "use tonic::Status;"),
        ("cli/x.rs", "use crate::store::redis::{self, RedisStore};\nfn f() { redis::open() }"),
        ("store/mod.rs", "pub mod redis;\nuse redis::X;"),
    ] {
        assert_eq!(breaches(file, source), [""; 0], "{file}: {source}");
    }
}

#[test]
fn only_app_decides_and_commits() {
    assert_eq!(
        breaches("api/x.rs", "fn f() { store.commit(&batch).await }"),
        ["1: only app calls Store::commit"]
    );
    assert_eq!(breaches("app/x.rs", "fn f() { store.commit(&batch).await }"), [""; 0]);
    assert_eq!(breaches("dispatch/x.rs", "use crate::engine::decide;"), ["1: dispatch must not name engine"]);
    assert_eq!(breaches("app/lane/x.rs", "use crate::engine::decide;"), [""; 0]);
}

#[test]
fn keys_are_spelled_in_one_file() {
    assert_eq!(spelled_keys("store/redis/link.rs", "fn f() {\n    let k = \"db:run\";\n}"), [2]);
    assert_eq!(spelled_keys("store/redis/link.rs", "let k = format!(\"{{{}}}:run\", p);"), [1]);
    assert_eq!(spelled_keys("store/redis/keys.rs", "let k = \"db:run\";"), [0; 0]);
    assert_eq!(
        spelled_keys("store/redis/link.rs", "// \"db:run\"\n#[cfg(test)]\nlet k = \"db:run\";"),
        [0; 0]
    );
}
