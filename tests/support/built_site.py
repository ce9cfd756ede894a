"""The built documentation as a reader's browser resolves it: links, anchors, and what is fetched."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements that a browser fetches without being asked, and the attribute that says what.
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
_FETCHING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}
_IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s*)["']?((?:https?:)?//[^"')]+)""")


class BuiltPage(HTMLParser):
    """One page of the site."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.path, self.anchors, self.links, self.fetched = path, set(), [], []
        self.feed(path.read_text("utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        place = given.get(_FETCHED.get(tag, ""))
        if place and (tag != "link" or _FETCHING_LINKS & set(given.get("rel", "").split())):
            self.fetched.append(place)


def pages_of(site):
    return {path: BuiltPage(path) for path in sorted(Path(site).rglob("*.html"))}


def dead_links(pages):
    """Every link or fetched file of the pages that leads nowhere: page and target."""
    dead = []
    for page in pages.values():
        if page.path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        for target in page.links + page.fetched:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            known = pages.get(path)
            anchor = unquote(parts.fragment)
            missing = not path.is_file() or (known and anchor and anchor not in known.anchors)
            dead += [f"{page.path.name}: {target}"] if missing else []
    return dead


def outside(site, pages):
    """Everything that opening a page would fetch from another host."""
    found = [
        f"{page.path.name}: {target}"
        for page in pages.values()
        for target in page.fetched
        if urlsplit(target).netloc
    ]
    return found + [
        f"{path.name}: {target}"
        for path in Path(site).rglob("*.css")
        for target in _IN_STYLE.findall(path.read_text("utf-8"))
    ]
