import csv
from collections import defaultdict

sales: dict[str, dict[str, float]] = defaultdict(dict)
with open("sales.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file):
        sales[row["month"]][row["product"]] = int(row["units"]) * float(row["price"])
products = list(sales["Jan"])
table = [(month, *found.values(), sum(found.values())) for month, found in sales.items()]
print("month", *(f"{name:>8}" for name in (*products, "sum")))
for month, *numbers in table:
    print(f"{month:<5}", *(f"{number:>8,.0f}" for number in numbers))
