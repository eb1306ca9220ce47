"""Word lists of the synthetic corpus: plain data, written for this recipe."""

# ruff: noqa: SIM905  (word lists read better as text)

GIRLS = """
    Mia Anna Lily Sara Emma Lucy Zoe Nina Ella Rosa Kate Amy Ruby Ivy Clara Molly Daisy Hana Lena Maya Nora
    Polly Tina Vera Wendy Alice Bella Julia Grace Leah
""".split()

BOYS = """
    Tom Sam Ben Max Leo Jack Tim Finn Dan Paul Noah Eric Hugo Oscar Peter Adam Luke Toby Carl Ivan Joe Nick Omar
    Ravi Simon Theo Victor Will Henry George
""".split()

NAMES = GIRLS + BOYS

ANIMALS = """
    dog cat bird frog rabbit fox bear mouse duck horse cow pig sheep goat hen owl turtle squirrel lion tiger
    elephant monkey snake bee ant fish whale penguin deer wolf hedgehog donkey parrot goose camel zebra giraffe
    kitten puppy snail crab butterfly ladybug otter
""".split()

COLORS = """
    red blue green yellow white black brown orange purple pink gray
""".split()

OBJECTS = """
    ball cup hat kite book key box bag spoon lamp drum boat coin shoe doll bell chair clock brush apple flower
    shell stone rope map plate bottle button ribbon candle basket pencil blanket toy train truck whistle
    umbrella scarf glove ring letter mirror pillow ladder bucket broom hammer cake cookie pear lemon carrot
    pumpkin egg balloon
""".split()

ADJECTIVES = """
    big small old new happy sad brave shy kind funny quiet loud fast slow clever tiny tall short warm cold soft
    shiny round strong gentle lazy hungry sleepy curious friendly careful lucky
""".split()

PLACES = """
    garden kitchen forest park school farm beach river barn market village hill library castle cave field attic
    playground bakery lake meadow town garage treehouse bedroom shop zoo harbor bridge island mountain
""".split()

WEATHER = """
    sunny rainy windy snowy cloudy cold warm foggy bright stormy
""".split()

VERBS = """
    run jump sing paint climb swim dance read build bake draw dig hide share help fix find carry plant wash
    count play sleep laugh whisper clap throw catch ride fly
""".split()

FEELINGS = """
    happy sad proud scared excited tired worried angry surprised calm lonely brave glad curious
""".split()

JOBS = """
    farmer baker teacher doctor sailor painter king queen fisherman gardener pilot cook tailor postman nurse
    singer builder librarian shepherd clockmaker wizard knight princess captain
""".split()

FAMILY = """
    mother father grandmother grandfather sister brother aunt uncle friend neighbor teacher
""".split()

NUMBER_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty
""".split()

SIZES = """
    ant bee mouse frog rabbit cat dog sheep pig cow horse camel elephant whale
""".split()

DAYS = """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
""".split()

MONTHS = """
    January February March April May June July August September October November December
""".split()

TOPICS = [
    word.replace("_", " ")
    for word in """
    ants apples autumn balloons batteries bears bees bicycles birds boats books bread bridges butterflies cats
    caves cheese clocks clouds colors cows deserts doctors dogs dreams drums eggs elephants eyes farms fire fish
    flowers forests foxes friends frogs games hands honey horses houses ice islands kindness kites leaves
    libraries light magnets maps milk money morning mountains mud music nests night owls paper penguins rain
    rainbows rivers roots sand schools seasons seeds shadows sharing sheep shells shoes sleep snow soap soil
    sound spiders spring stars summer teeth the_moon the_sea the_sun trains trees turtles volcanoes water whales
    wheels wind winter
""".split()
]

HOWTO = [
    word.replace("_", " ")
    for word in """
    make_a_sandwich plant_a_seed wash_your_hands bake_a_cake fly_a_kite feed_a_cat draw_a_house clean_a_room
    ride_a_bicycle make_a_paper_boat cross_the_street brush_your_teeth make_tea build_a_sand_castle wrap_a_gift
    grow_a_tomato make_a_snowman cook_an_egg pack_a_bag say_sorry_to_a_friend make_a_new_friend look_after_a_dog
    read_a_map make_soup paint_a_picture tie_your_shoes set_the_table write_a_letter save_money find_a_lost_toy
    learn_a_song make_a_salad take_care_of_a_plant go_to_sleep help_a_sad_friend
""".split()
]

EVENTS = [
    word.replace("_", " ")
    for word in """
    a_lost_hat a_broken_kite a_rainy_day a_hidden_key a_birthday_party a_cold_winter_night a_new_friend
    a_big_apple_tree a_strange_noise a_secret_map a_missing_cookie a_long_trip a_race a_storm a_magic_stone
    a_kind_stranger a_small_mistake a_big_surprise a_first_day_at_school a_lost_kitten a_snowy_morning
    a_school_play a_broken_toy a_dark_cave a_treasure_chest a_picnic a_garden_full_of_flowers a_little_boat
    a_talking_bird a_baby_bird_that_fell_from_its_nest a_letter_from_far_away a_promise a_great_idea a_contest
    a_shared_lunch a_flood a_train_ride a_trip_to_the_zoo a_night_in_a_tent a_falling_star
""".split()
]

LESSONS = [
    word.replace("_", " ")
    for word in """
    sharing being_kind telling_the_truth never_giving_up working_together being_patient helping_others
    being_brave listening saying_sorry trying_new_things taking_care_of_nature saying_thank_you friendship
    learning_from_mistakes
""".split()
]

OPPOSITE_PAIRS = [
    word.replace("_", " ")
    for word in """
    big_small hot_cold up_down day_night happy_sad fast_slow old_new old_young open_closed full_empty wet_dry
    hard_soft tall_short long_short light_dark light_heavy loud_quiet clean_dirty early_late left_right in_out
    over_under strong_weak rich_poor good_bad near_far high_low thick_thin wide_narrow rough_smooth sweet_sour
    first_last same_different awake_asleep brave_afraid push_pull come_go give_take laugh_cry win_lose begin_end
    buy_sell love_hate start_stop remember_forget inside_outside top_bottom front_back always_never above_below
    before_after yes_no true_false right_wrong asleep_awake summer_winter black_white friend_enemy
    question_answer arrive_leave float_sink find_lose north_south east_west
""".split()
]

OPPOSITES = [tuple(pair.split()) for pair in OPPOSITE_PAIRS]

COLOR_OF = {
    "grass": "green",
    "the sky": "blue",
    "snow": "white",
    "a banana": "yellow",
    "a lemon": "yellow",
    "a carrot": "orange",
    "coal": "black",
    "a tomato": "red",
    "blood": "red",
    "milk": "white",
    "chocolate": "brown",
    "a pumpkin": "orange",
    "a frog": "green",
    "the sun": "yellow",
    "a strawberry": "red",
    "a leaf": "green",
    "an orange": "orange",
    "a crow": "black",
    "a polar bear": "white",
    "a flamingo": "pink",
    "a pig": "pink",
    "a cucumber": "green",
    "an elephant": "gray",
    "a fire truck": "red",
    "a pea": "green",
    "salt": "white",
    "sugar": "white",
    "mud": "brown",
    "corn": "yellow",
    "a cherry": "red",
    "an eggplant": "purple",
    "the sea": "blue",
    "rice": "white",
    "a swan": "white",
    "night": "black",
}

SOUND_OF = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "bee": "buzz",
    "owl": "hoot",
    "lion": "roar",
    "snake": "hiss",
    "horse": "neigh",
    "hen": "cluck",
    "mouse": "squeak",
    "frog": "croak",
    "bird": "tweet",
    "donkey": "hee-haw",
}

LEGS_OF = {
    "dog": 4,
    "cat": 4,
    "bird": 2,
    "ant": 6,
    "bee": 6,
    "spider": 8,
    "hen": 2,
    "cow": 4,
    "horse": 4,
    "duck": 2,
    "snake": 0,
    "fish": 0,
    "frog": 4,
    "sheep": 4,
    "butterfly": 6,
    "owl": 2,
    "crab": 10,
    "pig": 4,
}

HOME_OF = {
    "bird": "nest",
    "bee": "hive",
    "dog": "kennel",
    "horse": "stable",
    "fish": "water",
    "bear": "cave",
    "rabbit": "burrow",
    "spider": "web",
    "king": "castle",
    "cow": "barn",
    "pig": "sty",
    "hen": "coop",
}

KIND_OF = {
    "apple": "fruit",
    "pear": "fruit",
    "banana": "fruit",
    "cherry": "fruit",
    "carrot": "vegetable",
    "potato": "vegetable",
    "onion": "vegetable",
    "dog": "animal",
    "cat": "animal",
    "horse": "animal",
    "rose": "flower",
    "tulip": "flower",
    "red": "color",
    "blue": "color",
    "green": "color",
    "hammer": "tool",
    "saw": "tool",
    "drum": "instrument",
    "violin": "instrument",
    "flute": "instrument",
    "Monday": "day",
    "Friday": "day",
    "May": "month",
    "June": "month",
    "circle": "shape",
    "square": "shape",
    "triangle": "shape",
    "coat": "piece of clothing",
    "hat": "piece of clothing",
    "car": "vehicle",
    "bus": "vehicle",
    "oak": "tree",
    "pine": "tree",
    "five": "number",
    "eight": "number",
    "eagle": "bird",
    "owl": "bird",
    "salmon": "fish",
    "shark": "fish",
}

PLURALS = {
    "mouse": "mice",
    "sheep": "sheep",
    "fish": "fish",
    "deer": "deer",
    "wolf": "wolves",
    "goose": "geese",
    "butterfly": "butterflies",
    "fox": "foxes",
    "box": "boxes",
    "brush": "brushes",
    "donkey": "donkeys",
    "monkey": "monkeys",
    "puppy": "puppies",
    "pony": "ponies",
    "ladybug": "ladybugs",
    "tomato": "tomatoes",
    "cherry": "cherries",
    "berry": "berries",
    "leaf": "leaves",
    "child": "children",
}

PLACES_ON = """
    beach bridge farm hill island mountain playground
""".split()

PLACES_AT = """
    harbor lake market river zoo
""".split()


def plural(noun: str) -> str:
    """Return the plural of a noun of these lists."""
    return PLURALS.get(noun, noun + "s")


def with_article(phrase: str) -> str:
    """Return the phrase after "a" or "an"."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def inside(place: str) -> str:
    """Return "in the garden", "on the hill" or "at the lake"."""
    preposition = "on" if place in PLACES_ON else "at" if place in PLACES_AT else "in"
    return f"{preposition} the {place}"


def pronouns(name: str) -> tuple[str, str, str]:
    """Return subject, object and possessive pronoun of a first name."""
    return ("she", "her", "her") if name in GIRLS else ("he", "him", "his")
