//! Arguments of `ragtag worker`.

use super::devices::DeviceArgs;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag worker --listen 0.0.0.0:7447 --model /models        # on one machine; prints HOST:PORT#KEY
  ragtag run model.gguf -p \"Once\" --worker HOST:7447#KEY     # on the other one
  ragtag plan model.gguf --worker A:7447#KEY,B:7447#KEY
  ragtag run --split 0-6=cpu:0,7-13=worker1/cpu:0 --worker 127.0.0.1:7447#KEY

Anyone with the key can use the devices, and can name model files of this machine. docs/machines.md describes the limits.")]
pub(crate) struct WorkerArgs {
    /// Address and port to listen at. Port 0 picks a free one. Other machines need 0.0.0.0:7447 or an own address.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7447")]
    pub(crate) listen: SocketAddr,
    /// File with the key that the other machine must have. It is made if it does not exist. Default: worker/key in
    /// RAGTAG_CACHE_DIR or in the user's cache folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Model, or folder of models. Default: the path of the model on the other machine.
    #[arg(short, long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// Do not encrypt activations, for networks that only you can use. Both ends still prove that they have the key, and all
    /// other messages are encrypted.
    #[arg(long)]
    pub(crate) plain: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}
