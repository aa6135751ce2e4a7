"""A fair queue: items are taken in turns of the clients, and of each client's requests."""

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Clients and their requests take turns: long ones do not delay short ones (round robin, Nagle 1985, RFC 970)."""

    def __init__(self) -> None:
        self._clients: OrderedDict[Hashable, OrderedDict[Hashable, deque[Item]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def clients(self) -> Collection[Hashable]:
        """Clients with items."""
        return self._clients.keys()

    def put(self, client: Hashable, request: Hashable, item: Item) -> None:
        """Add an item after the others of this request."""
        self._clients.setdefault(client, OrderedDict()).setdefault(request, deque()).append(item)
        self._size += 1

    def next(self) -> Item:
        """The next item, which stays in the queue."""
        if not self._size:
            raise IndexError("the queue is empty")
        requests = next(iter(self._clients.values()))
        return next(iter(requests.values()))[0]

    def take(self) -> Item:
        """Remove and return the next item; then it is another client's turn."""
        item = self.next()
        client, requests = next(iter(self._clients.items()))
        request, items = next(iter(requests.items()))
        items.popleft()
        self._size -= 1
        self._clients.move_to_end(client)
        requests.move_to_end(request)
        if not items:
            self._forget(client, request)
        return item

    def remove(self, client: Hashable, request: Hashable) -> list[Item]:
        """All items of this request, which leave the queue."""
        requests = self._clients.get(client)
        if requests is None or request not in requests:
            return []
        items = list(requests[request])
        self._size -= len(items)
        self._forget(client, request)
        return items

    def _forget(self, client: Hashable, request: Hashable) -> None:
        del self._clients[client][request]
        if not self._clients[client]:
            del self._clients[client]
