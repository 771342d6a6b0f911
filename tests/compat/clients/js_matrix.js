'use strict';

// The Node.js client's side of the matrix. Arguments and lines are those that tests/compat/matrix/programs.py describes.

const { Consumer, Message, Producer } = require('ali-ons');
const readline = require('readline');

const silent = { info() {}, warn() {}, error() {}, debug() {} };
// Only asked for addresses when there is no nameSrv.
const httpclient = { request: async () => { throw new Error('no HTTP here'); } };
const [, , , servers, prefix, rateText, ...features] = process.argv;
const rate = Number(rateText);
let stopped = false;

function say(event, fields) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
}

const now = () => Date.now() / 1000;
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const numberOf = key => Number(key.slice(key.lastIndexOf('-') + 1));

const secret = process.env.RAFTMQ_MATRIX_SECRET;

// Of a sender or reader of the feature, which signs as the user of that name; the library always signs.
function common(feature, role, instanceName) {
  return {
    nameSrv: servers.split(';'),
    httpclient,
    accessKeyId: secret ? `${prefix}-${feature}-${role}` : 'none',
    accessKeySecret: secret || 'none',
    logger: silent,
    instanceName,
  };
}

// How many attempts at a message fail, told by its number.
function failures(key) {
  return { 0: 99, 1: 1, 2: 2 }[numberOf(key) % 20] || 0;
}

function build(feature, number) {
  const key = `${feature}-${number}`;
  const message = new Message(`${prefix}-${feature}`, 'abc'[number % 3], key);
  message.keys = [key];
  if (feature === 'delay') {
    message.delayTimeLevel = 1 + number % 4;
  } else if (feature === 'timer') {
    message.properties.TIMER_DELAY_MS = String(500 + number % 7 * 700);
  } else if (feature === 'sql') {
    message.properties.price = String(number % 100);
  }
  return message;
}

async function sendAll(feature, producer) {
  const begun = Date.now();
  for (let number = 0; !stopped; number++) {
    const started = now();
    let end = {};
    try {
      await producer.send(build(feature, number));
    } catch (error) {
      end = { error: `${error.name}: ${error.message}` };
    }
    say('send', { cell: feature, key: `${feature}-${number}`, started, ended: now(), ...end });
    // At least a turn of the event loop: a send that fails at once would starve the rest.
    await pause(Math.max(1, begun + (number + 1) * 1000 / rate - Date.now()));
  }
}

async function startReader(feature, reader) {
  const consumer = new Consumer({
    ...common(feature, 'reader', `reader-${feature}-${reader}`),
    consumerGroup: `${prefix}-${feature}-readers`,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    isBroadcast: feature === 'broadcast',
    maxReconsumeTimes: feature === 'retry' ? 3 : 16,
  });
  consumer.on('error', error => say('error', { error: error.message }));
  const wanted = {
    tag: 'a || c',
    sql: { expressionType: 'SQL92', subString: 'price BETWEEN 50 AND 99' },
  }[feature] || '*';
  consumer.subscribe(`${prefix}-${feature}`, wanted, async message => {
    const tried = message.reconsumeTimes || 0;
    say('message', {
      cell: feature,
      reader,
      key: message.keys,
      at: now(),
      tried,
      queue: message.queueId,
      offset: Number(message.queueOffset),
    });
    if (feature === 'retry' && tried < failures(message.keys)) {
      // Not ACTION_RETRY: for a message that was sent back before, the library drops what the handler returns.
      throw new Error('to come again');
    }
  });
  await consumer.ready();
  return consumer;
}

async function main() {
  const consumers = [];
  const senders = [];
  for (const feature of features) {
    for (const reader of feature === 'broadcast' ? 'ab' : 'a') {
      consumers.push(await startReader(feature, reader));
    }
    const producer = new Producer({
      ...common(feature, 'sender', `sender-${feature}`),
      producerGroup: `${prefix}-${feature}-senders`,
    });
    producer.on('error', error => say('error', { error: error.message }));
    await producer.ready();
    senders.push([feature, producer]);
  }
  say('ready');
  let sending;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === 'go') {
      sending = senders.map(([feature, producer]) => sendAll(feature, producer));
    } else {
      stopped = true;
      await Promise.all(sending);
      say('stopped');
    }
  }
  for (const consumer of consumers) {
    await consumer.close();
  }
  say('done');
}

// Its timers would keep the process alive for ever.
main().then(() => process.exit(0), error => {
  say('error', { error: error.stack });
  process.exit(1);
});
