"""What a kubelet and a Prometheus ask, with nothing but the standard library.

probe PORT SERVICE       the status of a service, by grpc.health.v1 over plaintext HTTP/2
scrape NAME PORT FOLDER  /metrics, with the certificate in FOLDER; without one where FOLDER is -
"""

import http.client
import socket
import ssl
import sys

STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name, value):
    """A literal header field without indexing (RFC 7541, 6.2.2)."""
    name, value = name.encode(), value.encode()
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def probe(port, service):
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    message = b"\x0a" + bytes([len(service)]) + service.encode()
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0)
            + frame(HEADERS, END_HEADERS, 1, b"".join(header(*field) for field in fields.items()))
            + frame(DATA, END_STREAM, 1, body)
        )
        stream = connection.makefile("rb")
        while head := stream.read(9):
            kind, flags, payload = head[3], head[4], stream.read(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(frame(SETTINGS, ACK, 0))
            elif kind == DATA and payload:
                # An unset field is the default of proto3: UNKNOWN.
                return STATUS[payload[6] if len(payload) > 5 else 0]
            elif kind == HEADERS and flags & END_STREAM:
                return STATUS[3]
    return "no answer"


def scrape(name, port, folder):
    context = ssl.create_default_context()
    if folder == "-":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as connection:
        with context.wrap_socket(connection, server_hostname=name) as secured:
            asked = http.client.HTTPConnection(name)
            asked.sock = secured
            asked.request("GET", "/metrics")
            return asked.getresponse().read().decode()


print({"probe": probe, "scrape": scrape}[sys.argv[1]](*sys.argv[2:]))
