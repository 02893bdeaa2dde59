//! Implements `ragtag worker`, which offers the devices of this machine to other ones.

use super::args::WorkerArgs;
use super::error::{Error, Result};
use super::output::print;
use super::start::devices::{options, selected};
use crate::{WorkerKey, WorkerServer, WorkerSettings};

pub(super) fn run(args: &WorkerArgs) -> Result<()> {
    let no_path = || Error::Usage("no folder for the key (name a file with --key)".into());
    let path = args.key.clone().or_else(WorkerKey::default_path).ok_or_else(no_path)?;
    let key = WorkerKey::at(&path)?;
    let devices = selected(&options(&args.devices))?;
    let (listen, model, plain) = (args.listen, args.model.clone(), args.plain);
    let server = WorkerServer::new(devices, WorkerSettings { listen, key: key.clone(), model, plain })?;
    let address = server.address().map_err(Error::Output)?;
    let host = if address.ip().is_unspecified() { "HOST".into() } else { address.ip().to_string() };
    let host = if address.is_ipv6() && !address.ip().is_unspecified() { format!("[{host}]") } else { host };
    let plain = if plain { "plain-" } else { "" };
    print(&format!("--worker {host}:{}#{plain}{key}\n", address.port()))?;
    server.serve()
}
