//! One suite for every store: what `downbeat::store::Store` promises, on memory, on the embedded file, on Redis, on a
//! Redis Cluster.
//!
//! A test is a function over a [`fixture::Fixture`]; `contract!` stamps it once per store. To add one: write it in
//! the module of its subject and name it below.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod data;
mod fixture;
#[path = "../support/cluster.rs"]
mod redis_cluster;
#[path = "../support/redis.rs"]
mod redis_server;

mod cluster_only;
mod commits;
mod differential;
mod embedded_only;
mod events;
mod memory_only;
mod moves;
mod queues;
mod reads;
mod redis_only;
mod sessions;
mod ticks;
mod workflows;

macro_rules! contract {
    ($($module:ident: $($name:ident),+;)+) => {
        contract!(@store memory $($module: $($name),+;)+);
        contract!(@store embedded $($module: $($name),+;)+);
        contract!(@store redis $($module: $($name),+;)+);
        contract!(@store cluster $($module: $($name),+;)+);
    };
    (@store $store:ident $($module:ident: $($name:ident),+;)+) => {
        mod $store {
            $(mod $module {
                $(#[tokio::test]
                async fn $name() {
                    let fixture = crate::fixture::$store().await;
                    crate::$module::$name(&fixture).await;
                })+
            })+
        }
    };
}

contract! {
    commits:
        a_run_is_created_once,
        compares_the_whole_prefix_and_not_the_version,
        a_refused_decision_writes_nothing_and_the_others_of_its_batch_do,
        a_run_is_not_begun_of_a_version_that_is_not_there,
        a_known_sequence_gets_the_same_verdicts_and_writes_nothing,
        a_sequence_older_than_the_window_is_forgotten,
        sequences_of_other_lanes_are_their_own,
        a_skipped_sequence_may_come_later,
        a_lane_is_dropped_after_ten_idle_minutes,
        a_check_compares_and_writes_nothing,
        a_deleted_run_leaves_nothing,
        many_decisions_keep_their_order_over_partitions,
        large_records_are_compared_as_small_ones,
        an_unknown_partition_is_refused_as_not_sent,
        a_record_shorter_than_a_prefix_is_refused_as_not_sent;
    queues:
        entries_are_taken_lowest_score_first_then_by_name,
        takes_no_more_than_wanted,
        a_queue_may_be_named_twice_in_one_take,
        queues_of_one_type_with_other_labels_are_apart,
        a_claimed_entry_is_in_no_queue_until_its_claim_expires,
        a_commit_removes_ready_and_claimed_entries,
        heads_of_touched_queues_are_told,
        a_stale_entry_is_dropped_only_while_its_run_is_unchanged,
        discarding_an_entry_of_no_run_drops_it,
        filling_an_empty_queue_sends_a_hint,
        many_entries_of_one_decision_are_queued_and_removed;
    ticks:
        a_wake_up_is_lowered_set_and_removed,
        a_due_run_is_told_again_after_two_seconds,
        due_runs_are_limited_and_come_in_order,
        a_finished_run_expires_after_its_retention,
        retention_is_looked_at_every_five_seconds_and_at_once_while_there_is_more,
        the_next_wake_up_is_told,
        a_tick_of_nothing_moves_the_clocks_alone,
        retention_can_be_taken_back,
        the_lease_clock_goes_on_by_two_seconds_at_most,
        heads_of_all_queues_that_hold_work_are_told;
    sessions:
        a_session_is_put_only_over_the_expected_epoch,
        renewing_moves_the_deadline_of_the_named_epoch_only,
        a_removed_session_is_gone,
        an_id_that_names_no_partition_has_no_session,
        sessions_of_all_partitions_are_renewed_at_once,
        a_session_vanishes_an_hour_after_its_lease;
    events:
        notes_of_a_batch_are_one_entry_per_partition_in_order,
        reading_goes_on_after_a_position,
        a_waiting_reader_is_woken_by_a_commit,
        a_reader_with_nothing_to_read_gets_nothing_in_time,
        a_full_stream_is_trimmed_and_says_how_far,
        a_stream_is_trimmed_through_an_entry_that_was_read,
        a_position_can_be_read_on_from_while_nothing_behind_it_is_missing;
    reads:
        what_is_not_there_is_none,
        payloads_come_in_the_order_asked,
        runs_are_listed_newest_first_in_pages,
        runs_of_one_instant_are_listed_once_each;
    workflows:
        an_equal_document_registers_as_the_newest_version,
        an_older_text_makes_a_new_version,
        workflows_are_listed_newest_first,
        a_removed_workflow_is_gone_with_all_versions;
    moves:
        runs_are_listed_oldest_first_once_each,
        home_records_are_told_from_runs,
        the_names_of_payloads_are_told,
        versions_are_put_as_they_are;
}
