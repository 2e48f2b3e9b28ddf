//! The guide: its documents are good, its examples are the files it names, its links lead somewhere.

use super::*;
use std::path::{Path, PathBuf};

fn pages() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|p| p.extension().is_some_and(|e| e == "md"));
    let mut pages: Vec<_> = files.map(|p| (p.clone(), std::fs::read_to_string(p).unwrap())).collect();
    pages.sort();
    pages
}

fn documents(page: &str) -> impl Iterator<Item = &str> {
    page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap())
}

#[test]
fn every_document_of_the_guide_is_good() {
    let mut count = 0;
    for (_, page) in pages() {
        for document in documents(&page) {
            yaml(document);
            count += 1;
        }
    }
    assert!(count >= 12, "{count}");
}

#[test]
fn the_examples_of_the_guide_are_those_of_the_repository() {
    let mut count = 0;
    for (path, page) in pages() {
        for name in page.split("](../../examples/").skip(1) {
            let name = name.split(')').next().unwrap();
            // Those in folders are longer than a page, and are played by tests/examples.rs.
            let Some(name) = name.strip_suffix(".yaml").filter(|n| !n.contains('/')) else { continue };
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.yaml"));
            let text = std::fs::read_to_string(&file).unwrap();
            let (first, example) = text.split_once('\n').unwrap();
            let page_name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(first, format!("# docs/guide/{page_name} explains it."));
            assert!(documents(&page).any(|d| d == example), "{name}");
            count += 1;
        }
    }
    assert_eq!(count, 6);
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn the_links_of_the_guide_lead_somewhere() {
    let pages = pages();
    let index = &pages.iter().find(|(p, _)| p.ends_with("README.md")).unwrap().1;
    for (path, page) in &pages {
        for link in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = path.parent().unwrap().join(file);
            assert!(target.exists(), "{link} in {}", path.display());
            if !place.is_empty() {
                let text = std::fs::read_to_string(target).unwrap();
                let mut headings = text.lines().filter_map(|l| l.strip_prefix("## ")).map(anchor);
                assert!(headings.any(|h| h == place), "{link} in {}", path.display());
            }
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "{name} is not in the index");
    }
}
