"""A small Z-machine story that Jericho does not know, compiled by the Inform that TextWorld brings.

A hall with a lamp, a cellar below with a box, a coin in it, and a lever. The lamp is 5 points, the coin 10 and the end.
Who pushes the lever, or says "hang", waits for ever.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = """
Global location; Global score; Global turns;
Global was_taken;
Attribute open;
Array buffer -> 100;
Array parse -> 60;
Object hall "Hall";
Object cellar "Cellar";
Object me "yourself" hall;
Object lamp "brass lamp" hall;
Object box "box" cellar;
Object coin "coin" box;
Object lever "lever" cellar;

[ Word n; if (n > parse->1) return 0; return parse-->(2 * n - 1); ];

[ Thing n w;
  w = Word(n);
  if (w == 'brass') w = Word(n + 1);
  if (w == 'lamp' && (lamp in location || lamp in me)) return lamp;
  if (w == 'box' && box in location) return box;
  if (w == 'lever' && lever in location) return lever;
  if (w == 'coin' && (coin in me || coin in location || (coin in box && box has open && box in location))) return coin;
  return 0;
];

[ Look o;
  print (name) location, "^";
  objectloop (o in location) if (o ~= me) print "There is a ", (name) o, " here.^";
  if (box in location && box has open && coin in box) print "In the box is a coin.^";
  if (location == hall) print "Stairs lead down.^"; else print "Stairs lead up.^";
];

[ Carried o;
  if (child(me) == 0) "You are carrying nothing.";
  print "You are carrying:^";
  objectloop (o in me) print "  a ", (name) o, "^";
];

[ Take o;
  if (o == 0) "You can't see any such thing.";
  if (o == box or lever) "That is fixed in place.";
  if (o in me) "You have that already.";
  move o to me;
  if (o == coin) {
    score = score + 10;
    print "Taken.^^*** You have won ***^^Would you like to RESTART, RESTORE a saved game or QUIT?^";
    rtrue;
  }
  if (was_taken == 0) { was_taken = 1; score = score + 5; }
  "Taken.";
];

[ Do verb o;
  verb = Word(1);
  if (verb == 'look' or 'l//') { Look(); rtrue; }
  if (verb == 'inventory' or 'i//') { Carried(); rtrue; }
  if (verb == 'wait' or 'z//') "Time passes.";
  if (verb == 'score') { print "Your score is ", score, " of a possible 15.^"; rtrue; }
  if (verb == 'hang') for (::) turns = 0;
  if (verb == 'down' && location == hall) { location = cellar; move me to cellar; Look(); rtrue; }
  if (verb == 'up' && location == cellar) { location = hall; move me to hall; Look(); rtrue; }
  if (verb == 'down' or 'up' or 'north' or 'south') "You can't go that way.";
  o = Thing(2);
  if (verb == 'take') { Take(o); rtrue; }
  if (verb == 'examine') { if (o == 0) "You can't see any such thing."; print "A fine ", (name) o, ".^"; rtrue; }
  if (verb == 'drop') { if (o && o in me) { move o to location; "Dropped."; } "You don't have that."; }
  if (verb == 'open') { if (o == box && o hasnt open) { give box open; "Opened."; } "You can't open that."; }
  if (verb == 'close') { if (o == box && o has open) { give box ~open; "Closed."; } "You can't close that."; }
  if (verb == 'push') { if (o == lever) for (::) turns = 0; "Nothing happens."; }
  "I don't know the word.";
];

[ Main;
  location = hall;
  print "THE LAMP^^";
  Look();
  for (::) {
    print "^>";
    buffer->0 = 98; buffer->1 = 0; parse->0 = 12;
    read buffer parse;
    turns++;
    Do();
  }
];
"""


def small_story(folder: Path, version: int = 3) -> Path:
    """Compiles the story into this folder: lamp.z3, lamp.z5 or lamp.z8."""
    import textworld

    inform = Path(textworld.__file__).parent / "thirdparty/inform7-6M62/share/inform7/Compilers/inform6"
    source, story = folder / "lamp.inf", folder / f"lamp.z{version}"
    source.write_text(SOURCE)
    subprocess.run([inform, f"-wv{version}", source, story], check=True, capture_output=True)
    return story
