//! The tasks of a plan from those of a document: every expression compiled, in its place.

use super::fields::Faults;
use super::graph::{Graph, Hints};
use super::kind::Does;
use super::names::{Seen, Spot};
use super::node::{Kind, Node, join};
use super::policy::Length;
use super::task::Draft;
use super::tree::Tree;
use crate::model::duration;
use crate::model::expr::Template;
use crate::model::plan::{Child, Concurrency, ForEach, Group, Rate, Repeat, Role, TaskKind, TaskPlan, Wait};

/// Compiles expressions.
pub(super) struct Compiler<'a, 'n> {
    pub(super) tree: &'a Tree<'n>,
    pub(super) graph: &'a Graph,
    pub(super) hints: &'a Hints,
    pub(super) faults: &'a mut Faults,
}

impl Compiler<'_, '_> {
    /// The value `node`, which stands at `path`.
    pub(super) fn template(&mut self, node: &Node, path: &str, spot: Spot) -> Template {
        let seen = Seen { tree: self.tree, graph: self.graph, hints: self.hints, spot };
        Template::compile(node, path, &seen, &mut self.faults.0)
    }

    fn length(&mut self, length: &Length<'_>, path: &str, spot: Spot) -> Template {
        match length {
            Length::Known(span) => self.literal(duration::format(*span), path, spot),
            Length::Computed(node) => self.template(node, path, spot),
        }
    }

    fn literal(&mut self, text: String, path: &str, spot: Spot) -> Template {
        self.template(&Node { line: 0, kind: Kind::String(text) }, path, spot)
    }

    /// A task of the plan. `None` if it has no kind, which has been told.
    pub(super) fn task(&mut self, index: u32) -> Option<TaskPlan> {
        let draft: &Draft<'_> = &self.tree.drafts[index as usize];
        let spot = if draft.role == Role::Compensation { Spot::Undo(index) } else { Spot::Each(index) };
        let path = |key: &str| join(&draft.path, key);
        let condition = draft.condition.map(|node| self.template(node, &path("if"), Spot::Once(index)));
        let input = draft.input.map(|node| self.template(node, &path("input"), spot));
        let for_each = draft.for_each.as_ref().map(|each| ForEach {
            items: self.template(each.list, &path("for_each"), Spot::Once(index)),
            max_parallel: each.max_parallel,
            tolerate: each.tolerate,
        });
        let repeat = draft.repeat.as_ref().map(|repeat| {
            let path = path("repeat");
            let between = Spot::Between(index);
            Repeat {
                condition: repeat.condition.map(|node| self.template(node, &join(&path, "while"), between)),
                max: repeat.max,
                delay: repeat.delay.as_ref().map(|d| self.length(d, &join(&path, "delay"), between)),
            }
        });
        let concurrency = draft.concurrency.as_ref().map(|shared| Concurrency {
            key: self.template(shared.key, &join(&path("concurrency"), "key"), spot),
            limit: shared.limit,
        });
        let rate = draft.rate.as_ref().map(|rated| Rate {
            key: self.template(rated.key, &join(&path("rate"), "key"), spot),
            limit: rated.limit,
            per: rated.per,
        });
        let kind = self.kind(draft, index, spot)?;
        Some(TaskPlan {
            id: draft.id.clone(),
            role: draft.role,
            parent: draft.parent,
            kind,
            needs: self.graph.needs[index as usize].clone(),
            dependents: self.graph.dependents[index as usize].clone(),
            when: draft.when,
            condition,
            input,
            for_each,
            repeat,
            retry: draft.retry.clone(),
            timeout: draft.timeout.clone(),
            concurrency,
            rate,
            continue_on_error: draft.continue_on_error,
            compensate: draft.compensate,
            priority: draft.priority,
            labels: draft.labels.clone(),
            description: draft.description.map(str::to_owned),
        })
    }

    fn kind(&mut self, draft: &Draft<'_>, index: u32, spot: Spot) -> Option<TaskKind> {
        let path = |key: &str| join(&draft.path, key);
        let wait = |key: &str| join(&join(&draft.path, "wait"), key);
        let fail = |key: &str| join(&join(&draft.path, "fail"), key);
        Some(match draft.does.as_ref()? {
            Does::Worker(task_type) => TaskKind::Worker(task_type.clone()),
            Does::WorkerOf(node) => TaskKind::WorkerOf(self.template(node, &path("type"), spot)),
            Does::Workflow { name, version, detach, path } => TaskKind::Workflow(Child {
                workflow: self.template(name, path, spot),
                version: *version,
                detach: *detach,
            }),
            Does::Group { output, fail_fast, body, .. } => TaskKind::Group(Group {
                body: body.clone(),
                output: output.map(|node| self.template(node, &path("output"), Spot::Output(index))),
                fail_fast: *fail_fast,
            }),
            Does::For(length) => TaskKind::Wait(Wait::For(self.length(length, &wait("for"), spot))),
            Does::Until(node) => TaskKind::Wait(Wait::Until(self.template(node, &wait("until"), spot))),
            Does::Signal(node) => TaskKind::Wait(Wait::Signal(self.template(node, &wait("signal"), spot))),
            Does::Set(node) => TaskKind::Set(self.template(node, &path("set"), spot)),
            Does::Fail { code, message } => TaskKind::Fail {
                code: self.template(code, &fail("code"), spot),
                message: match message {
                    Some(node) => self.template(node, &fail("message"), spot),
                    None => self.literal(format!("the workflow failed at '{}'", draft.id), "", spot),
                },
            },
            Does::Finish { output, .. } => TaskKind::Finish {
                output: output.map(|node| self.template(node, &join(&path("finish"), "output"), spot)),
            },
        })
    }
}
