"""Executes the twenty tools of the suite: a small bank with the same accounts for every customer. Nothing depends on a clock."""

from __future__ import annotations

from typing import Any

from pytest_agentbench import ToolError

TODAY = "2026-11-23"
CENTS = 100

#: What every customer has, in cents; money that a card or a loan is owed is below 0.
ACCOUNTS = {
    "checking": 842_055,
    "savings": 2_410_000,
    "money_market": 3_125_000,
    "joint": 1_260_440,
    "business": 4_873_112,
    "credit_card": -131_275,
}
PENDING = {"checking": -4_210, "business": -186_000}
PAST = [
    {"account": "checking", "date": "2026-11-03", "merchant": "Paycheck", "cents": 231_040, "type": "credit"},
    {"account": "checking", "date": "2026-11-10", "merchant": "Corner Grocery", "cents": -8_415, "type": "debit"},
    {"account": "checking", "date": "2026-11-14", "merchant": "Overdraft", "cents": -3_500, "type": "fee"},
    {"account": "savings", "date": "2026-10-31", "merchant": "Interest", "cents": 6_110, "type": "credit"},
    {"account": "business", "date": "2026-11-12", "merchant": "Card Terminal", "cents": 128_390, "type": "credit"},
    {"account": "credit_card", "date": "2026-11-18", "merchant": "Hardware Barn", "cents": -21_260, "type": "debit"},
]

LOANS = {"personal": (11.5, 640_000), "auto": (6.9, 1_830_000), "student": (5.5, 2_105_000), "home_equity": (8.25, 3_300_000),
         "business": (7.25, 5_200_000)}  # fmt: skip
SAVINGS = [("Everyday Savings", 2.1, 0), ("High Yield Savings", 4.0, 500), ("Premier Savings", 4.35, 10_000)]
CDS = [(6, 3.9), (12, 4.2), (24, 4.0), (36, 3.8), (60, 3.7)]
FUNDS = [("Treasury Ladder", "low", 1_000), ("Balanced Portfolio", "medium", 2_500), ("Growth Portfolio", "high", 2_500)]
DOLLARS = {"USD": 1.0, "EUR": 1.08, "GBP": 1.27, "CHF": 1.13, "JPY": 0.0066, "CAD": 0.73, "MXN": 0.055, "INR": 0.012}
ELSEWHERE = 0.1  # dollars of any other currency


def dollars(cents: int) -> float:
    return cents / CENTS


def in_cents(amount: float) -> int:
    return round(amount * CENTS)


class Bank:
    """The bank as one customer sees it in one rollout. Methods without `_` are the tools. They raise ToolError for impossible requests."""

    def __init__(self) -> None:
        self.accounts = dict(ACCOUNTS)
        self.paid_out: dict[str, int] = {}  # to others: name -> cents
        self.done: dict[str, list[dict[str, Any]]] = {}  # what was set up, by kind

    @property
    def state(self) -> dict[str, Any]:
        """The final state for the scorer `state_equals`: accounts, money that was paid out, and everything that was set up."""
        return {"accounts": self.accounts, "paid_out": self.paid_out, **self.done}

    def _noted(self, kind: str, **facts: Any) -> str:
        """Records something that the customer has set up, and returns its number."""
        given = {name: value for name, value in facts.items() if value is not None}
        self.done.setdefault(kind, []).append(given)
        return f"{kind[:2].upper()}-{len(self.done[kind]):04d}"

    def _account(self, named: str) -> str:
        """Returns the account that a name such as `savings 4471` means. Empty if the customer has no such account."""
        kind = named.partition(" ")[0].lower()
        return kind if kind in self.accounts else ""

    def get_account_balance(self, account_type: str, last_four: str | None = None, include_pending: bool = False) -> dict[str, Any]:
        """Returns how much money is in an account."""
        held = self.accounts[account_type]
        waiting = PENDING.get(account_type, 0)
        balance = held + waiting if include_pending else held
        number = {"last_four": last_four} if last_four else {}
        return {"balance": dollars(balance), "available": dollars(held + min(waiting, 0)), "as_of": TODAY, **number}

    def get_transaction_history(
        self,
        account_type: str,
        start_date: str | None = None,
        end_date: str | None = None,
        merchant: str | None = None,
        min_amount: float = 0,
        transaction_type: str = "all",
    ) -> dict[str, Any]:
        """Returns the payments from and to an account."""
        period = {"from": start_date or "", "to": end_date or TODAY}
        listed = [
            {"date": each["date"], "merchant": each["merchant"], "amount": dollars(int(str(each["cents"]))), "type": each["type"]}
            for each in PAST
            if each["account"] == account_type
            and (not merchant or merchant.lower() in str(each["merchant"]).lower())
            and abs(int(str(each["cents"]))) >= in_cents(min_amount)
            and transaction_type in ("all", each["type"])
        ]
        return {"transactions": listed, "count": len(listed), "period": period}

    def transfer_funds(
        self, from_account: str, to_account: str, amount: float, transfer_date: str | None = None, memo: str | None = None
    ) -> dict[str, Any]:
        """Moves money to another account, or to somebody else. A transfer for a later day takes the money now."""
        source, target, cents = self._account(from_account), self._account(to_account), in_cents(amount)
        if not source:
            raise ToolError(f"the customer has no account {from_account!r}; there are: {', '.join(self.accounts)}")
        if source == target:
            raise ToolError("money cannot be moved to the account that it comes from")
        if source != "credit_card" and self.accounts[source] < cents:
            raise ToolError(f"not enough money: {source} holds {dollars(self.accounts[source]):.2f}")
        self.accounts[source] -= cents
        if target:
            self.accounts[target] += cents
        else:
            self.paid_out[to_account] = self.paid_out.get(to_account, 0) + cents
        facts = {"from": source, "to": target or to_account, "cents": cents, "date": transfer_date, "memo": memo}
        number = self._noted("transfers", **facts)
        return {"confirmation_number": number, "status": f"scheduled for {transfer_date}" if transfer_date else "completed"}

    def get_loan_information(self, loan_type: str, information: str) -> dict[str, Any]:
        """Returns facts about loans."""
        rate, owed = LOANS[loan_type]
        details: dict[str, dict[str, Any]] = {
            "rates": {"apr": rate},
            "balance": {"owed": dollars(owed)},
            "payoff": {"payoff": dollars(owed + owed // 200)},
            "schedule": {"monthly": dollars(owed // 48), "remaining": 48, "next": "2026-12-01"},
            "eligibility": {"needed": ["proof of income", "two years of tax returns"]},
        }
        return {"loan_type": loan_type, "details": details[information]}

    def get_credit_card_information(self, information: str, card_name: str = "Rewards Card") -> dict[str, Any]:
        """Returns facts about the credit card."""
        owed = dollars(-self.accounts["credit_card"])
        details: dict[str, dict[str, Any]] = {
            "balance": {"owed": owed},
            "limit": {"limit": 9000.0, "left": round(9000.0 - owed, 2)},
            "rewards": {"points": 18_420},
            "apr": {"apr": 21.9},
            "statement": {"closed": "2026-11-15", "total": 1098.5},
            "due_date": {"due": "2026-12-10", "minimum": 35.0},
        }
        return {"card_name": card_name, "details": details[information]}

    def get_mortgage_details(self, information: str, property_address: str = "the home on file") -> dict[str, Any]:
        """Returns facts about the mortgage."""
        details: dict[str, dict[str, Any]] = {
            "balance": {"owed": 214_380.55},
            "rate": {"rate": 4.125},
            "escrow": {"escrow": 3_140.2},
            "payoff": {"payoff": 215_102.4, "good_through": "2026-12-15"},
            "next_payment": {"amount": 1_412.33, "due": "2026-12-01"},
            "refinance_options": {"options": [{"years": 15, "rate": 5.4}, {"years": 30, "rate": 6.1}]},
        }
        return {"details": details[information], "property_address": property_address}

    def get_savings_account_products(
        self, account_holder: str, initial_deposit: float | None = None, purpose: str | None = None
    ) -> dict[str, Any]:
        """Returns the savings accounts that the bank offers."""
        products = [
            {"name": name, "yield": rate, "minimum": least, "holder": account_holder}
            for name, rate, least in SAVINGS
            if initial_deposit is None or initial_deposit >= least
        ]
        return {"products": products, "count": len(products), **({"purpose": purpose} if purpose else {})}

    def schedule_appointment(
        self,
        appointment_type: str,
        preferred_date: str,
        preferred_time: str | None = None,
        location: str | None = None,
        channel: str | None = None,
    ) -> dict[str, Any]:
        """Books an appointment."""
        number = self._noted(
            "appointments", about=appointment_type, date=preferred_date, time=preferred_time, location=location, channel=channel
        )
        when = f"{preferred_date} {preferred_time or 'at a time to be agreed on'}"
        return {"appointment_id": number, "scheduled_for": when, "place": location or channel or "branch"}

    def check_loan_application_status(self, loan_type: str, application_id: str | None = None) -> dict[str, Any]:
        """Returns the status of a loan application."""
        named = f"your {loan_type} application{f' {application_id}' if application_id else ''}"
        return {"status": "in review", "next_steps": f"an officer looks at {named} by 2026-11-30", "missing_documents": []}

    def find_nearby_locations(
        self, location: str, location_type: str, radius_miles: float = 10, open_on: str | None = None
    ) -> dict[str, Any]:
        """Returns branches and cash machines near a place."""
        places = [{"name": f"{location} {location_type} {number}", "miles": number * 1.5, "open_on": open_on} for number in (1, 2)]
        near = [each for each in places if float(str(each["miles"])) <= radius_miles]
        return {"locations": near, "count": len(near)}

    def get_investment_products(self, product_type: str, risk_level: str | None = None, amount: float | None = None) -> dict[str, Any]:
        """Returns the investments that the bank offers."""
        products = [
            {"name": name, "risk": risk, "minimum": least, "type": product_type}
            for name, risk, least in FUNDS
            if risk_level in (None, risk) and (amount is None or amount >= least)
        ]
        return {"products": products, "count": len(products)}

    def report_lost_stolen_card(
        self, card_type: str, incident: str, last_four: str | None = None, replacement: bool = False
    ) -> dict[str, Any]:
        """Blocks a card."""
        number = self._noted("blocked_cards", card=card_type, incident=incident, last_four=last_four, replacement=replacement)
        return {"case_number": number, "blocked": True, "replacement_arrival": "2026-11-30" if replacement else "none ordered"}

    def update_contact_information(self, field: str, new_value: str, effective_date: str | None = None) -> dict[str, Any]:
        """Changes a contact detail."""
        self._noted("contact", field=field, value=new_value, date=effective_date)
        return {"updated": True, "current_value": new_value}

    def setup_automatic_bill_pay(
        self, payee: str, amount: float, frequency: str, start_date: str | None = None, from_account: str = "checking"
    ) -> dict[str, Any]:
        """Sets up recurring payments."""
        source = self._account(from_account)
        if not source:
            raise ToolError(f"the customer has no account {from_account!r}; there are: {', '.join(self.accounts)}")
        number = self._noted("bill_pay", payee=payee, cents=in_cents(amount), frequency=frequency, start=start_date, account=source)
        return {"plan_id": number, "next_payment_date": start_date or "2026-12-01"}

    def initiate_transaction_dispute(
        self, merchant: str, amount: float, reason: str, transaction_date: str | None = None
    ) -> dict[str, Any]:
        """Opens a dispute."""
        number = self._noted("disputes", merchant=merchant, cents=in_cents(amount), reason=reason, date=transaction_date)
        return {"dispute_id": number, "status": "opened", "provisional_credit": amount if reason == "unauthorized" else 0.0}

    def get_exchange_rates(self, from_currency: str, to_currency: str, amount: float | None = None) -> dict[str, Any]:
        """Returns the exchange rate between two currencies."""
        rate = round(DOLLARS.get(from_currency, ELSEWHERE) / DOLLARS.get(to_currency, ELSEWHERE), 6)
        return {"rate": rate, "converted_amount": round((1.0 if amount is None else amount) * rate, 2), "as_of": TODAY}

    def calculate_loan_payment(
        self, loan_amount: float, interest_rate: float, term_months: int, loan_type: str | None = None
    ) -> dict[str, Any]:
        """Returns the monthly payment for a loan."""
        monthly_rate = interest_rate / 1200
        exact = loan_amount / term_months if not monthly_rate else loan_amount * monthly_rate / (1 - (1 + monthly_rate) ** -term_months)
        monthly = in_cents(exact)
        cost = monthly * term_months
        kind = {"loan_type": loan_type} if loan_type else {}
        interest = dollars(cost - in_cents(loan_amount))
        return {"monthly_payment": dollars(monthly), "total_interest": interest, "total_cost": dollars(cost), **kind}

    def manage_account_alerts(
        self, action: str, alert_type: str, threshold_amount: float | None = None, delivery: str | None = None
    ) -> dict[str, Any]:
        """Turns alerts on and off."""
        self._noted("alerts", action=action, alert=alert_type, threshold=threshold_amount, delivery=delivery)
        return {"active": action != "disable", "settings": {"threshold": threshold_amount, "delivery": delivery or "email"}}

    def check_wire_transfer_status(
        self, direction: str, reference_number: str | None = None, amount: float | None = None, counterparty: str | None = None
    ) -> dict[str, Any]:
        """Returns the status of a wire transfer."""
        known = {"amount": amount, "counterparty": counterparty}
        number = reference_number or f"{direction[:2].upper()}-2026-1119"
        return {"status": "pending", "expected_arrival": "2026-11-25", "reference_number": number,
                **{name: value for name, value in known.items() if value is not None}}  # fmt: skip

    def get_cd_products(self, term_months: int, deposit_amount: float) -> dict[str, Any]:
        """Returns the certificates of deposit that the bank offers."""
        term, rate = min(CDS, key=lambda each: abs(each[0] - term_months))
        interest = round(deposit_amount * rate / 100 * term / 12, 2)
        return {"products": [{"term_months": term, "yield": rate, "minimum": 500, "interest_at_the_end": interest}], "count": 1}
