//! Compiles the protocol without protoc.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "proto/downbeat/v1/downbeat.proto",
        "proto/downbeat/v1/schedules.proto",
        "proto/downbeat/v1/worker.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let path = out.join("downbeat_descriptor.bin");
    std::fs::write(&path, prost_bytes(&descriptors))?;
    tonic_prost_build::configure()
        // The RPC `Connect` would clash with the generated transport helper of that name.
        .build_transport(false)
        .bytes(".")
        .btree_map(".")
        .file_descriptor_set_path(&path)
        .skip_protoc_run()
        .compile_protos(&files, &["proto"])?;
    Ok(())
}

fn prost_bytes(set: &impl prost::Message) -> Vec<u8> {
    set.encode_to_vec()
}
