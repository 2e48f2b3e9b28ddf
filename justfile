# Short names for what is done often. `just` lists them.

default:
    @just --list

# Everything that CI checks
test *names:
    scripts/test {{names}}

# Lints and format, without tests
check:
    cargo fmt --check
    cargo clippy --all-targets -- -D warnings

# All of it at work, on one screen
demo:
    cargo run --release -- demo

# A development server on port 7070
dev:
    cargo run -- dev

# The first figure: a chain of nine no-op tasks, 10,000 times, on a private Redis
bench *args="chain":
    cargo run --release -- bench {{args}} --out target/bench

# All figures of docs/benchmarks.md, or some: `just figures --only headline --rounds 3`
figures *args:
    cargo build --release
    benches/figures {{args}}

# The same chain on BullMQ, Celery, apalis and Restate, in turns with Downbeat; benches/peers/README.md
peers *args:
    cargo build --release
    benches/peers/run {{args}}

# Instructions of the pure hot paths, against those that were kept
instructions *args:
    scripts/instructions {{args}}

# Writes openapi/downbeat.json anew after a change of the routes
openapi:
    UPDATE_OPENAPI=1 cargo test openapi

# Runs that come and go leave nothing behind, at full size: four rounds of 20,000 runs × 5 tasks kept for 60 s
growth runs="20000" retention="60s":
    DOWNBEAT_RUNS={{runs}} DOWNBEAT_RETENTION={{retention}} cargo test --release --test retention growth -- --nocapture
