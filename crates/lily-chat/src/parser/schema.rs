//! Which JSON types a tool's schema allows for an argument.

use serde_json::{Map, Value};

/// Subschemas that are looked at for one argument: a bound for references that multiply.
const BUDGET: usize = 256;

/// A set of JSON types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    pub const NONE: Types = Types(0);
    pub const STRING: Types = Types(1);
    pub const INTEGER: Types = Types(2);
    pub const NUMBER: Types = Types(4);
    pub const BOOLEAN: Types = Types(8);
    pub const NULL: Types = Types(16);
    pub const OBJECT: Types = Types(32);
    pub const ARRAY: Types = Types(64);

    /// Types of the argument `key` by the schema of all parameters. A string if it says nothing.
    pub fn of_argument(parameters: &Value, key: &str) -> Types {
        let mut reader = Reader { root: parameters, budget: BUDGET, followed: Vec::new() };
        let types = reader.argument(parameters, key).unwrap_or(Types::NONE);
        if types == Types::NONE { Types::STRING } else { types }
    }

    /// Types that a part of a schema allows. All of them if it says nothing.
    pub fn of_part(root: &Value, part: &Value) -> Types {
        let mut reader = Reader { root, budget: BUDGET, followed: Vec::new() };
        match reader.types(part) {
            Types::NONE => Types(u8::MAX),
            types => types,
        }
    }

    pub fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of these types are among the others.
    pub fn only(self, others: Types) -> bool {
        self.0 & !others.0 == 0
    }

    pub fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    /// Those of these types that listed values have. All of them if nothing is listed, or nothing
    /// that fits.
    fn narrowed(self, listed: Types) -> Types {
        let numbers = Types::INTEGER.or(Types::NUMBER);
        // 5 is a number, and 5.0 is whole.
        let listed = if listed.has(numbers) { listed.or(numbers) } else { listed };
        match self.0 & listed.0 {
            0 => self,
            both => Types(both),
        }
    }

    /// Their names in JSON schema, without that of strings.
    pub fn others(self) -> Vec<&'static str> {
        let names = ["integer", "number", "boolean", "null", "object", "array"];
        names.into_iter().filter(|name| self.has(Types::named(name))).collect()
    }

    fn named(name: &str) -> Types {
        match name {
            "integer" => Types::INTEGER,
            "number" => Types::NUMBER,
            "boolean" => Types::BOOLEAN,
            "null" => Types::NULL,
            "object" => Types::OBJECT,
            "array" => Types::ARRAY,
            // Also what is no type of JSON schema, such as "datetime".
            _ => Types::STRING,
        }
    }

    fn of_value(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(number) if number.is_f64() => Types::NUMBER,
            Value::Number(_) => Types::INTEGER,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }
}

struct Reader<'a> {
    root: &'a Value,
    budget: usize,
    /// References that led here: none is followed in a circle.
    followed: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    /// Types of a property of an object schema; none if the schema does not speak of it.
    fn argument(&mut self, schema: &'a Value, key: &str) -> Option<Types> {
        let schema = self.enter(schema)?;
        if let Some(property) = schema.get("properties").and_then(|all| all.get(key)) {
            return Some(self.types(property));
        }
        let found = self.follow(schema, |reader, target| reader.argument(target, key));
        if let Some(found) = found.flatten() {
            return Some(found);
        }
        for word in ["allOf", "anyOf", "oneOf"] {
            for member in list(schema, word) {
                if let Some(found) = self.argument(member, key) {
                    return Some(found);
                }
            }
        }
        let other = schema.get("additionalProperties").filter(|other| other.is_object())?;
        Some(self.types(other))
    }

    /// Types that a schema allows; none if it says nothing.
    fn types(&mut self, schema: &'a Value) -> Types {
        let Some(schema) = self.enter(schema) else { return Types::NONE };
        let types = match schema.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .fold(Types::NONE, |types, name| types.or(Types::named(name))),
            _ => self.composed(schema),
        };
        let types = types.narrowed(listed(schema));
        match schema.get("nullable") {
            Some(Value::Bool(true)) => types.or(Types::NULL),
            _ => types,
        }
    }

    /// Types of a schema without `type`.
    fn composed(&mut self, schema: &'a Map<String, Value>) -> Types {
        let mut types = Types::NONE;
        if let Some(target) = self.follow(schema, Self::types) {
            types = types.or(target);
        }
        for word in ["anyOf", "oneOf"] {
            for member in list(schema, word) {
                types = types.or(self.types(member));
            }
        }
        // All of them hold: what every member that speaks of a type allows.
        let mut all = Types::NONE;
        for member in list(schema, "allOf") {
            let member = self.types(member);
            let both = Types(all.0 & member.0);
            all = if both == Types::NONE { all.or(member) } else { both };
        }
        types = types.or(all);
        if types != Types::NONE {
            return types;
        }
        types = listed(schema);
        if types != Types::NONE {
            return types;
        }
        match (schema.contains_key("properties"), schema.contains_key("items")) {
            (true, _) => Types::OBJECT,
            (_, true) => Types::ARRAY,
            _ => Types::NONE,
        }
    }

    fn enter(&mut self, schema: &'a Value) -> Option<&'a Map<String, Value>> {
        self.budget = self.budget.checked_sub(1)?;
        schema.as_object()
    }

    /// Reads what a reference inside the same schema points to.
    fn follow<T>(
        &mut self,
        schema: &'a Map<String, Value>,
        read: impl FnOnce(&mut Self, &'a Value) -> T,
    ) -> Option<T> {
        let (pointer, target) = target(self.root, schema)?;
        if self.followed.contains(&pointer) {
            return None;
        }
        self.followed.push(pointer);
        let found = read(self, target);
        self.followed.pop();
        Some(found)
    }
}

/// Types of the values that a schema lists; none if it lists none.
fn listed(schema: &Map<String, Value>) -> Types {
    let values = list(schema, "enum").chain(schema.get("const"));
    values.fold(Types::NONE, |types, value| types.or(Types::of_value(value)))
}

/// What a reference inside the same schema leads to, with its pointer.
pub fn target<'a>(root: &'a Value, schema: &'a Map<String, Value>) -> Option<(&'a str, &'a Value)> {
    let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    Some((pointer, root.pointer(pointer)?))
}

/// The array of a keyword; nothing if it is none.
pub fn list<'a>(
    schema: &'a Map<String, Value>,
    word: &str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    schema.get(word).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn listed_values_narrow_the_types_that_a_schema_names() {
        let (string, null) = (Types::STRING, Types::NULL);
        for (schema, types) in [
            (json!({ "type": ["string", "integer"], "const": "5" }), string),
            (json!({ "type": ["string", "integer"], "const": 5 }), Types::INTEGER),
            (json!({ "type": ["string", "integer"], "enum": [5, "x"] }), string.or(Types::INTEGER)),
            (json!({ "type": ["string", "number"], "enum": [5] }), Types::NUMBER),
            (json!({ "type": ["string", "null"], "enum": ["null"] }), string),
            (
                json!({ "type": ["string", "integer"], "enum": ["5"], "nullable": true }),
                string.or(null),
            ),
            (
                json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }], "enum": ["5"] }),
                string,
            ),
            // Nothing that is listed fits.
            (json!({ "type": "integer", "enum": ["5"] }), Types::INTEGER),
        ] {
            let parameters = json!({ "properties": { "a": schema } });
            assert_eq!(Types::of_argument(&parameters, "a"), types, "{schema}");
        }
    }
}
