"The Manor" by Headway

Use scoring. The maximum score is 40.

The Orchard is a room. "Old apple trees stand here. A gravel path leads east to a porch."
The letterbox is a closed openable fixed in place container in the Orchard. "A tin letterbox stands at the path." The description is "It is made of tin."
The note is in the letterbox. The description is "It says: the crown belongs in the cabinet."

The Porch is east of the Orchard. "The front door of the manor is nailed up. There is a window to the east, and the orchard lies west."
The window is a closed openable door. The window is scenery. The window is east of the Porch and west of the Kitchen. The description is "A sash window."

The Kitchen is a room. "A cold kitchen. A window is in the west wall, a passage leads south, and a staircase leads up."
The kitchen table is a supporter in the Kitchen. The kitchen table is fixed in place. The description is "Scrubbed oak."
The loaf is on the kitchen table. The loaf is edible. The description is "It is stale." The printed name of the loaf is "loaf of bread". Understand "bread" as the loaf.
The jar is on the kitchen table. The jar is a closed openable container. The description is "A glass jar."
The honey is in the jar. The description is "Sticky."

The Parlour is south of the Kitchen. "Dust lies on everything. The kitchen is north."
The brass lantern is a device in the Parlour. "A brass lantern hangs on a hook." The description is "A battered lantern." Understand "lamp" as the lantern.
The rusty sword is in the Parlour. The description is "It has seen better days."
The cabinet is a closed openable fixed in place container in the Parlour. The description is "A cabinet for precious things."
The rug is in the Parlour. The rug is fixed in place. "A heavy rug covers the middle of the floor." The description is "It is very heavy."
The rug can be moved. The rug is not moved.
Instead of pushing or pulling or turning the rug when the rug is not moved:
	now the rug is moved;
	now the hatch is in the Parlour;
	say "With a great effort the rug is moved to one side, which shows a hatch."
Understand "move [something]" as pushing.
The hatch is a closed openable container. The hatch is fixed in place. The description is "A dusty hatch in the floor."
Instead of going down in the Parlour:
	if the hatch is in the Parlour and the hatch is open:
		say "You climb down.";
		move the player to the Cellar;
	otherwise:
		say "You can't go that way."
Instead of inserting something into the hatch, say "It would fall down."

The Loft is up from the Kitchen. The Loft is dark. "Cobwebs everywhere. The stairs lead down. A railing runs along them."
The iron key is in the Loft. The description is "A large key."
The coil of rope is in the Loft. The description is "Thirty feet of it." Understand "rope" as the coil.

The Cellar is a dark room. "A damp cellar. A hatch is above you, and an arch leads north. A shaft falls away to the east."
Instead of going up in the Cellar:
	move the player to the Parlour.
The goblin is a person in the Cellar. "A goblin with yellow eyes bars the arch." The description is "It looks hungry."
Cutting it with is an action applying to two things. Understand "attack [something] with [something preferably held]" and "kill [something] with [something preferably held]" as cutting it with.
Carry out cutting something with something:
	if the noun is the goblin and the second noun is the sword and the player carries the sword:
		now the goblin is nowhere;
		increase the score by 10;
		say "The goblin vanishes in a puff of smoke.";
	otherwise if the noun is the goblin:
		say "The goblin laughs at you.";
	otherwise:
		say "That would do nothing."
Instead of going north in the Cellar when the goblin is in the Cellar, say "The goblin bars the way."

The railing is in the Cellar. The railing is fixed in place. "An iron railing guards the shaft." The description is "It is solid."
The railing can be roped. The railing is not roped.
Tying it on is an action applying to two things. Understand the command "tie" as something new. Understand "tie [something preferably held] to [something]" as tying it on.
Carry out tying something on something:
	if the noun is the coil and the second noun is the railing:
		now the railing is roped;
		now the coil is nowhere;
		say "The rope hangs down into the shaft.";
	otherwise if the second noun is the railing:
		say "It is not long enough for the railing.";
	otherwise:
		say "It would not hold."
Instead of going down in the Cellar:
	if the railing is roped:
		say "You slide down the rope.";
		move the player to the Grotto;
	otherwise:
		say "It is too deep to jump."
The Grotto is a dark room. "Water drips. The rope leads up."
Instead of going up in the Grotto, move the player to the Cellar.
The ruby is in the Grotto. The description is "Red as wine."
After taking the ruby for the first time:
	increase the score by 5;
	say "Taken."

The Vault is north of the Cellar. The Vault is dark. "A narrow vault. The only way out is south."
The chest is a closed openable locked lockable container in the Vault. The chest is fixed in place. The matching key of the chest is the iron key. The description is "Iron-bound."
The crown is in the chest. The description is "It shines."
After taking the crown for the first time:
	increase the score by 10;
	say "Taken."

Carry out switching on the lantern: now the lantern is lit.
Carry out switching off the lantern: now the lantern is unlit.

After inserting the ruby into the cabinet:
	increase the score by 5;
	say "It fits."
After inserting the crown into the cabinet:
	increase the score by 10;
	end the story finally saying "You have won".
