"""What travels between stations: frozen records of arrays, with the shape of each stated where it is declared."""
