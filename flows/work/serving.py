"""The sampler of a node, in its own process or on a model server, as `run.sampler` says."""

from pathlib import Path
from typing import assert_never

from flows.context import NodeContext
from flows.leases import Lease
from specs.errors import StateError
from specs.run import LocalSampling, Run, VLLMSampling
from tasks.episodes.local import LocalSampler
from tasks.episodes.vllm_sampler import Asking, VLLMSampler
from tasks.files import remove_dir
from tasks.policy.store import LoadedPolicy, Precision

AnySampler = LocalSampler | VLLMSampler


def sampler_for(node: NodeContext, policy: LoadedPolicy, precision: Precision) -> AnySampler:
    """Return a sampler with the weights of `policy`; a server is given up when the node ends."""
    version = f"{node.id}/start/{policy.digest[:12]}"
    run = Run.model_validate(node.execution)
    match run.sampler:
        case LocalSampling():
            return LocalSampler(policy, version, precision)
        case VLLMSampling() as spec:
            return _served(node, spec, policy, version, precision)
        case _:
            assert_never(run.sampler)


def _served(
    node: NodeContext, spec: VLLMSampling, policy: LoadedPolicy, version: str, precision: Precision
) -> VLLMSampler:
    from flows.model_servers import Caller, ModelServer, NamedServer

    home = node.home or node.out.parent
    if spec.url is not None:
        server = NamedServer(spec.url, str(_folder_of_a_node(node, home)), precision)
    else:
        caller = Caller(home, node.id, node.stop, lambda what: node.progress(what, None, {}))
        server = ModelServer(caller, spec, policy, precision)
        node.at_end.callback(server.release)
    asking = Asking(spec.in_flight, spec.request_seconds, node.stop, node.say)
    sampler = VLLMSampler(server, policy, version, precision, asking)
    node.at_end.callback(sampler.close)
    return sampler


def _folder_of_a_node(node: NodeContext, home: Path) -> Path:
    """Return the folder through which a server of somebody else's gets weights; it goes when the node ends."""
    folder = home / "served" / node.run_key
    folder.mkdir(parents=True, exist_ok=True)
    lease = Lease(folder / "lease")
    if not lease.try_acquire(node=node.id):
        raise StateError(f"{folder}: another process writes weights there; wait until it has ended, and run again")
    node.at_end.callback(lease.release)
    node.at_end.callback(remove_dir, folder)
    return folder
