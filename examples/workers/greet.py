"""A worker in Python over plain gRPC, from the proto files alone.

    pip install -r examples/workers/requirements.txt
    python examples/workers/greet.py [HOST:PORT]
"""
import concurrent.futures, json, pathlib, queue, sys
import grpc

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "proto"))
pb, rpc = grpc.protos_and_services("downbeat/v1/worker.proto")

HANDLERS = {"greet": lambda task: {"text": f"Hello, {task['name']}!"}}
CREDIT = 8  # tasks of each type at once

def work(task):
    try:
        output = HANDLERS[task.type](json.loads(task.input))
        result = pb.Result(token=task.token, completed=json.dumps(output).encode())
    except Exception as error:
        failure = pb.TaskFailure(code=type(error).__name__, message=str(error))
        result = pb.Result(token=task.token, failed=failure)
    outbox.put(pb.WorkerMessage(results=pb.Results(results=[result])))

outbox, pool = queue.SimpleQueue(), concurrent.futures.ThreadPoolExecutor(CREDIT * len(HANDLERS))
types = [pb.Subscription(type=name, credit=CREDIT) for name in HANDLERS]
outbox.put(pb.WorkerMessage(hello=pb.Hello(label="python", subscriptions=types)))
channel = grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070")
for message in rpc.WorkerServiceStub(channel).Connect(iter(outbox.get, None)):
    kind = message.WhichOneof("message")
    if kind == "ping":
        outbox.put(pb.WorkerMessage(pong=pb.Pong()))
    elif kind == "assign":
        tasks = message.assign.assignments
        outbox.put(pb.WorkerMessage(ack=pb.Tokens(tokens=[task.token for task in tasks])))
        for task in tasks:
            pool.submit(work, task)
