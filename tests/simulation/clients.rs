//! Callers: register, start, cancel, delete; each call to any server, repeated until there is an answer.

use crate::documents;
use crate::readers;
use crate::rng::Rng;
use crate::world::World;
use bytes::Bytes;
use downbeat::app::view::StartRequest;
use downbeat::app::{App, AppError};
use downbeat::model::document::Format;
use downbeat::model::error::ErrorCode;
use downbeat::model::ids::{RunId, SignalId, WorkflowName};
use downbeat::model::run::RunStatus;
use downbeat::model::time::Span;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Calls any server until one gives an answer that counts; none if the world ends first.
pub(crate) async fn insist<T, F>(
    world: &Arc<World>,
    rng: &mut Rng,
    call: impl Fn(App) -> F,
) -> Option<Result<T, AppError>>
where
    F: Future<Output = Result<T, AppError>>,
{
    loop {
        if world.is_over() {
            return None;
        }
        if let Some((server, app)) = world.pick(rng) {
            let answer = async {
                world.servers[server].link.gate().await;
                let answer = call(app).await;
                world.servers[server].link.gate().await;
                answer
            };
            match tokio::time::timeout(Duration::from_secs(15), answer).await {
                Ok(Err(e)) if matches!(e.code, ErrorCode::StoreUnavailable | ErrorCode::Overloaded) => {}
                Ok(answer) => return Some(answer),
                Err(_) => {}
            }
        }
        tokio::time::sleep(rng.millis(20, 600)).await;
    }
}

/// Registers the workflows of the seed.
pub(crate) async fn register(world: &Arc<World>, rng: &mut Rng) {
    for number in 0..world.drawn().workflows {
        let document = documents::draw(rng, world.drawn(), &world.types, number);
        let text = serde_json::to_vec_pretty(&document).unwrap();
        let format = if rng.chance(0.5) { Format::Yaml } else { Format::Json };
        world.note(format_args!("document {document}"));
        let registered = insist(world, rng, |app| {
            let text = text.clone();
            async move { app.register(None, &text, format, false).await }
        });
        match registered.await {
            Some(Ok(_)) | None => {}
            Some(Err(e)) => world.violation(format_args!("a document is refused: {e} {:?}", e.faults)),
        }
    }
}

/// Registers other documents under the same names, now and then.
pub(crate) async fn change(world: Arc<World>) {
    let mut rng = world.rng.split("changes", 0);
    while !world.is_healed() && !world.is_over() {
        tokio::time::sleep(rng.millis(500, 1_500)).await;
        if !rng.chance(world.drawn().new_versions / 60.0) {
            continue;
        }
        let number = rng.below(world.drawn().workflows);
        let document = documents::draw(&mut rng, world.drawn(), &world.types, number);
        let text = serde_json::to_vec(&document).unwrap();
        let registered = insist(&world, &mut rng, |app| {
            let text = text.clone();
            async move { app.register(None, &text, Format::Json, false).await }
        });
        if let Some(Ok(registered)) = registered.await {
            let workflow = registered.workflow;
            world.note(format_args!("{} has version {} {document}", workflow.name, workflow.version));
        }
    }
}

/// Starts the runs of the seed over some time, and does other things to them.
pub(crate) async fn start_all(world: Arc<World>, within: Duration) {
    let rng = world.rng.split("client", 0);
    let mut all = tokio::task::JoinSet::new();
    for n in 0..world.drawn().runs {
        all.spawn(one_run(Arc::clone(&world), rng.split("run", n), n, within));
    }
    while all.join_next().await.is_some() {}
}

async fn one_run(world: Arc<World>, mut rng: Rng, n: u64, within: Duration) {
    tokio::time::sleep(rng.millis(0, within.as_millis() as u64)).await;
    let id = RunId::new(&format!("run-{n}")).unwrap();
    let workflow = WorkflowName::new(&format!("flow-{}", rng.below(world.drawn().workflows))).unwrap();
    let pad = "y".repeat(*rng.pick(&[0, 0, 100]));
    let request = StartRequest {
        workflow,
        version: None,
        id: Some(id.clone()),
        input: Bytes::from(format!(r#"{{"n":{},"pad":"{pad}"}}"#, rng.below(10))),
        start_at: None,
        tags: BTreeMap::from([("n".to_owned(), n.to_string())]),
        priority: rng.chance(0.2).then(|| rng.range(0, 10) as i32 - 5),
        reject_existing: false,
        wait: None,
    };
    let p = world.drawn();
    let (twice, cancel, deletes) = (rng.chance(p.twice), rng.chance(p.cancel), rng.chance(p.deletes));
    let read = rng.chance(0.3);
    let waits = rng.chance(p.waits) && !read;
    if start(&world, &mut rng, &request, twice).await.is_none() {
        return;
    }
    let follower = read
        .then(|| tokio::spawn(readers::follow_run(Arc::clone(&world), rng.split("follow", 0), id.clone())));
    if waits {
        wait(&world, &mut rng, &id).await;
    }
    if cancel {
        tokio::time::sleep(rng.millis(0, 15_000)).await;
        let (compensate, force) = (rng.chance(0.5), rng.chance(0.2));
        let canceled = insist(&world, &mut rng, |app| {
            let id = id.clone();
            async move { app.cancel(&id, compensate, force).await }
        });
        match canceled.await {
            Some(Ok(view)) => {
                world.note(format_args!("{id} is cancelled by a caller"));
                let ends = view.status.is_terminal() || view.ending == Some(RunStatus::Cancelled);
                if !ends || (force && !view.status.is_terminal()) {
                    world.violation(format_args!("{id} was cancelled and is {}", view.status.name()));
                }
            }
            Some(Err(e)) if matches!(e.code, ErrorCode::RunEnded | ErrorCode::RunNotFound) => {}
            Some(Err(e)) => world.violation(format_args!("{id} cannot be cancelled: {e}")),
            None => return,
        }
    }
    // A resume that is lost with the tail of the store would leave the run paused for ever, rightly.
    if world.drawn().lost_tails == 0.0 && rng.chance(0.2) && !pause(&world, &mut rng, &id).await {
        return;
    }
    if rng.chance(0.3) && !signal(&world, &mut rng, &id).await {
        return;
    }
    if deletes {
        delete_and_begin_anew(&world, &mut rng, &request).await;
    }
    if let Some(follower) = follower {
        drop(follower.await);
    }
}

/// Pauses a run for some time. False: the world has ended.
async fn pause(world: &Arc<World>, rng: &mut Rng, id: &RunId) -> bool {
    tokio::time::sleep(rng.millis(0, 5_000)).await;
    for pauses in [true, false] {
        let answer = insist(world, rng, |app| {
            let id = id.clone();
            async move { if pauses { app.pause(&id).await } else { app.resume(&id).await } }
        });
        match answer.await {
            Some(Ok(view)) => {
                world.note(format_args!("{id} is {} after a caller's pause: {pauses}", view.status.name()));
                // A pause is ended by a cancel and by the run's timeout alone, and those may be taken with it. Nothing
                // else is decided about a paused run, and a run that is ending otherwise refuses to be paused.
                let right = match view.ending.unwrap_or(view.status) {
                    RunStatus::Paused => pauses,
                    RunStatus::Cancelled | RunStatus::TimedOut => true,
                    RunStatus::Pending | RunStatus::Running | RunStatus::Completed | RunStatus::Failed => {
                        !pauses
                    }
                };
                if !right {
                    world.violation(format_args!(
                        "{id} was paused ({pauses}) and is {}, ending {:?}",
                        view.status.name(),
                        view.ending
                    ));
                }
            }
            Some(Err(e)) if matches!(e.code, ErrorCode::RunEnded | ErrorCode::RunNotFound) => {}
            Some(Err(e)) => world.violation(format_args!("{id} cannot be paused or resumed: {e}")),
            None => return false,
        }
        tokio::time::sleep(rng.millis(0, 8_000)).await;
    }
    true
}

/// Resumes what a pause has left paused that a server took long after its caller had asked another one, and resumed: such
/// a call has no number by which it would be known to be old.
pub(crate) async fn resume_left_over(world: Arc<World>) {
    let mut rng = world.rng.split("resumes", 0);
    while !world.is_healed() && !world.is_over() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Callers that pause have resumed by then.
    tokio::time::sleep(Duration::from_mins(1)).await;
    while !world.is_over() {
        let paused: Vec<RunId> = {
            let audit = world.audit.lock();
            let paused = audit.runs.iter().filter(|(_, t)| t.state.status == RunStatus::Paused);
            paused.map(|(id, _)| id.clone()).collect()
        };
        for id in paused {
            world.note(format_args!("{id} was left paused, and is resumed"));
            let resumed = insist(&world, &mut rng, |app| {
                let id = id.clone();
                async move { app.resume(&id).await }
            });
            drop(resumed.await);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Sends a run the same signal twice: it is kept once. False: the world has ended.
async fn signal(world: &Arc<World>, rng: &mut Rng, id: &RunId) -> bool {
    for _ in 0..2 {
        let answer = insist(world, rng, |app| {
            let (id, name) = (id.clone(), "go".parse().unwrap());
            let signal = SignalId::new("signal-1").unwrap();
            async move { app.signal(&id, &name, Some(&signal), &Bytes::from_static(b"[1.0]")).await }
        });
        match answer.await {
            Some(Ok(_)) => {}
            Some(Err(e)) if matches!(e.code, ErrorCode::RunEnded | ErrorCode::RunNotFound) => {}
            Some(Err(e)) => world.violation(format_args!("{id} cannot be sent a signal: {e}")),
            None => return false,
        }
    }
    true
}

/// Starts a run, perhaps through two servers at once.
async fn start(world: &Arc<World>, rng: &mut Rng, request: &StartRequest, twice: bool) -> Option<()> {
    let before = world.audit.lock().made(request.id.as_ref()?);
    let one = |mut rng: Rng| {
        let world = Arc::clone(world);
        let request = request.clone();
        async move {
            insist(&world, &mut rng, |app| {
                let request = request.clone();
                async move { app.start_quietly(request).await }
            })
            .await
        }
    };
    let answers = if twice {
        let (a, b) = tokio::join!(biased; one(rng.split("first", 0)), one(rng.split("second", 0)));
        vec![a?, b?]
    } else {
        vec![one(rng.split("first", 0)).await?]
    };
    let mut made = 0;
    for answer in answers {
        match answer {
            Ok((id, created)) => {
                made += usize::from(created);
                let audit = world.audit.lock();
                if audit.made(&id) == before && audit.last_rolled_back.is_none() {
                    world.violation(format_args!("{id} was started, and there is no such run"));
                }
            }
            // With the tail of the store that was lost a run of this id that was deleted came back.
            Err(e) if e.code == ErrorCode::RunIdTaken && world.audit.lock().last_rolled_back.is_some() => {}
            Err(e) => world.violation(format_args!("{:?} cannot be started: {e}", request.id)),
        }
    }
    // A run may have been deleted and made again in between.
    let times = world.audit.lock().made(request.id.as_ref()?).saturating_sub(before);
    if made > times && world.audit.lock().last_rolled_back.is_none() {
        world.violation(format_args!("{:?} was made twice", request.id));
    }
    Some(())
}

/// Waits for a run to end; an answer before it has ended must have taken its time.
async fn wait(world: &Arc<World>, rng: &mut Rng, id: &RunId) {
    for _ in 0..4 {
        let Some((server, app)) = world.pick(rng) else { return };
        let time = rng.millis(1_000, 20_000);
        let begun = Instant::now();
        world.servers[server].link.gate().await;
        let read = app.run(id, Some(Span(time.as_micros() as i64))).await;
        let Ok(view) = read else { continue };
        let drained = app.ready().await.is_err_and(|e| e.code == ErrorCode::Overloaded);
        if !view.status.is_terminal() && begun.elapsed() < time && !drained {
            world.violation(format_args!("a wait of {time:?} for {id} ended after {:?}", begun.elapsed()));
        }
        if view.status.is_terminal() {
            return;
        }
    }
}

/// Deletes a run once it has ended, and starts another under its id.
async fn delete_and_begin_anew(world: &Arc<World>, rng: &mut Rng, request: &StartRequest) {
    let Some(id) = request.id.clone() else { return };
    let give_up = Instant::now() + Duration::from_mins(1);
    loop {
        tokio::time::sleep(rng.millis(200, 3_000)).await;
        let deleted = insist(world, rng, |app| {
            let id = id.clone();
            async move { app.delete(&id).await }
        });
        match deleted.await {
            Some(Ok(())) => break,
            Some(Err(e)) if e.code == ErrorCode::RunNotFound => break,
            Some(Err(e)) if e.code == ErrorCode::RunNotEnded => {}
            Some(Err(e)) => return world.violation(format_args!("{id} cannot be deleted: {e}")),
            None => return,
        }
        if Instant::now() > give_up {
            return;
        }
    }
    if world.is_healed() {
        return;
    }
    let mut again = request.clone();
    again.input = Bytes::from_static(br#"{"n":1}"#);
    start(world, rng, &again, false).await;
}
